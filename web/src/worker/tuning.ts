/** Which variants of its shaders a GPU uses for a model: measured once, and remembered in this browser. */

import { LowbitError } from '../errors.js';
import { Gpu } from './gpu.js';
import { readNote, writeNote } from './store.js';
import type { Glue, Target, Wasm } from './wasm.js';

type Tuner = InstanceType<Glue['Tuner']>;

/** The CPU is clearly quicker than the GPU. */
export class SlowerGpu extends LowbitError {
  constructor(reason: string) {
    super('device', `the CPU is quicker than the GPU: ${reason}`);
  }
}

/** What this worker has measured, for pages without storage: a lost device is no reason to measure again. */
const measured = new Map<string, string>();

/**
 * The choice of variants for the model of a header, as the engine writes it. Nothing is measured where software acts as the
 * GPU, which is slow whatever it runs. Throws {@link SlowerGpu} where that is so and the CPU may be used instead.
 */
export async function chooseVariants(wasm: Wasm, name: string, header: Uint8Array, gpu: Gpu, target: Target): Promise<string> {
  const { isSoftware, ...adapter } = gpu.adapter;
  const { dot4, subgroups, f16 } = gpu.features;
  const tuner = wasm.call((glue) => new glue.Tuner(name, header, JSON.stringify(adapter), target.options, dot4, subgroups, f16));
  try {
    const known = isSoftware || (await isKnown(wasm, tuner));
    if (!known) await measure(wasm, tuner);
    const slower = wasm.call(() => tuner.slower());
    if (slower !== undefined && target.mayRefuse) throw new SlowerGpu(slower);
    return wasm.call(() => tuner.choice());
  } finally {
    wasm.free(tuner);
  }
}

async function isKnown(wasm: Wasm, tuner: Tuner): Promise<boolean> {
  const key = wasm.call(() => tuner.key());
  const text = measured.get(key) ?? (await readNote(key));
  return text !== undefined && wasm.call(() => tuner.recall(text));
}

/** Measures on a device of its own: what fails there, or stays in its memory, is gone with it. */
async function measure(wasm: Wasm, tuner: Tuner): Promise<void> {
  const gpu = await Gpu.open(true);
  if (!gpu) return;
  try {
    wasm.call(() => tuner.begin(gpu));
    let record = wasm.call(() => tuner.poll());
    for (; record === undefined; record = wasm.call(() => tuner.poll())) await gpu.settled();
    const key = wasm.call(() => tuner.key());
    measured.set(key, record);
    await writeNote(key, record);
  } catch (error) {
    // The fixed choice serves as well, unless the engine itself has stopped.
    if (error instanceof LowbitError && error.code === 'engine-crashed') throw error;
  } finally {
    gpu.close();
  }
}
