/** WebGPU as the engine uses it: plans of dispatches over numbered buffers. `crates/wasm/src/gpu.rs` calls it. */

import { LowbitError } from '../errors.js';
import type { AdapterInfo } from '../types.js';

/** What the standard defines and every browser has; TypeScript's library lacks the values. */
declare const GPUBufferUsage: Record<'MAP_READ' | 'COPY_SRC' | 'COPY_DST' | 'UNIFORM' | 'STORAGE', number>;
declare const GPUMapMode: Record<'READ', number>;

/** A shader that is compiled. */
interface Shader {
  pipeline: GPUComputePipeline;
  name: string;
  /** Whether its second binding is what changes from step to step. */
  readsStep: boolean;
}

/** A dispatch that is ready to run. */
interface Run {
  pipeline: GPUComputePipeline;
  bindings: GPUBindGroup;
  x: number;
  y: number;
}

/** The parameters of a plan's dispatches, and the dispatches. */
interface Plan {
  params: GPUBuffer;
  runs: Run[];
}

/** What shaders may use where the GPU has it. */
const EXTENSIONS: GPUFeatureName[] = ['subgroups', 'shader-f16'];

/** The browser tells within this time that a device is lost. */
const LOSS_NOTICE_MS = 500;

/** A GPU of the system. What goes wrong in the background is told by {@link Gpu.take}. */
export class Gpu {
  readonly #buffers: (GPUBuffer | undefined)[] = [];
  readonly #shaders: Shader[] = [];
  readonly #plans = new Map<number, Plan>();
  readonly #step: GPUBuffer;
  /** Commands that are not submitted yet. */
  #encoder: GPUCommandEncoder | undefined;
  /** The plan that ran last, and whether it was the one before it too, as from token to token. */
  #last = 0;
  #isRepeated = false;
  /** Its commands for the next time, encoded while the device works. */
  #ahead: GPUCommandEncoder | undefined;
  #copy: GPUBuffer | undefined;
  #numbers = 0;
  /** What was asked for last: settles when it is there, or when it will never be. */
  #pending: Promise<void> = Promise.resolve();
  #asked = 0;
  #answer: Uint8Array | undefined;
  /** The first thing that went wrong. */
  #failure: LowbitError | undefined;
  #isLost = false;
  readonly #lost: Promise<void>;

  private constructor(
    private readonly device: GPUDevice,
    readonly adapter: AdapterInfo,
  ) {
    const has = (feature: GPUFeatureName) => device.features.has(feature);
    this.features = {
      dot4: navigator.gpu.wgslLanguageFeatures.has('packed_4x8_integer_dot_product'),
      subgroups: has('subgroups'),
      f16: has('shader-f16'),
    };
    this.#step = device.createBuffer({ label: 'step', size: 16, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    device.onuncapturederror = ({ error }) => this.#fail(new LowbitError('device', `GPU: ${error.message}`));
    this.#lost = device.lost.then(({ message, reason }) => {
      this.#isLost = true;
      this.#fail(new LowbitError('device', `GPU: the device was lost (${reason || 'unknown'}): ${message}`));
    });
  }

  /** The system's GPU; nothing where the browser offers none, or only one that computes on the CPU and that was not asked for. */
  static async open(software: boolean): Promise<Gpu | undefined> {
    const adapter = await navigator.gpu?.requestAdapter({ powerPreference: 'high-performance' }).catch(() => null);
    if (!adapter || (adapter.info.isFallbackAdapter && !software)) return undefined;
    const { vendor, architecture, device, description, isFallbackAdapter } = adapter.info;
    try {
      // The default limits, which every device has: what runs here runs everywhere.
      const requiredFeatures = EXTENSIONS.filter((feature) => adapter.features.has(feature));
      return new Gpu(await adapter.requestDevice({ label: 'lowbit', requiredFeatures }), { vendor, architecture, device, description, isSoftware: isFallbackAdapter });
    } catch {
      return undefined;
    }
  }

  /** What it can do beyond what every GPU can: `Features` of `crates/gpu/src/kernels.rs`. */
  readonly features: Record<'dot4' | 'subgroups' | 'f16', boolean>;

  /** Whether anything has gone wrong, other than a result. */
  get hasFailed(): boolean {
    return this.#failure !== undefined;
  }

  /** Whether the device is gone, and all that was on it. */
  get isLost(): boolean {
    return this.#isLost;
  }

  /** Whether the device is gone. What fails with it may be known a moment before that it is. */
  wasLost(): Promise<boolean> {
    const later = new Promise<void>((resolve) => setTimeout(resolve, LOSS_NOTICE_MS));
    return Promise.race([this.#lost, later]).then(() => this.#isLost);
  }

  /** Settles when what was asked for is there, or will never be. */
  settled(): Promise<void> {
    return this.#pending;
  }

  /** Waits for all that the device was told to do; throws what went wrong. */
  async finish(): Promise<void> {
    this.ask(0, 0);
    await this.#pending;
    this.take();
  }

  /** Frees everything. */
  close(): void {
    this.device.onuncapturederror = null;
    this.device.destroy();
  }

  // What the engine calls.

  buffer(what: string, bytes: number): number {
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.device.pushErrorScope('out-of-memory');
    const buffer = this.device.createBuffer({ label: what, size, usage });
    this.#check((error) => new LowbitError('out-of-memory', `${bytes} bytes of ${what} (${error.message})`));
    const free = this.#buffers.indexOf(undefined);
    const number = free < 0 ? this.#buffers.length : free;
    this.#buffers[number] = buffer;
    return number;
  }

  free(buffer: number): void {
    this.#submit();
    this.#buffers[buffer]?.destroy();
    this.#buffers[buffer] = undefined;
  }

  write(buffer: number, offset: number, bytes: Uint8Array<ArrayBuffer>): void {
    this.#submit();
    if (bytes.length > 0) this.device.queue.writeBuffer(this.#buffer(buffer), offset, bytes);
  }

  shader(name: string, source: string, readsStep: boolean): number {
    this.device.pushErrorScope('validation');
    const module = this.device.createShaderModule({ label: name, code: source });
    const pipeline = this.device.createComputePipeline({ label: name, layout: 'auto', compute: { module, entryPoint: 'main' } });
    this.#check((error) => new LowbitError('device', `GPU: shader ${name}: ${error.message}`));
    return this.#shaders.push({ pipeline, name, readsStep }) - 1;
  }

  plan(params: Uint8Array<ArrayBuffer>): number {
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const buffer = this.device.createBuffer({ label: 'params', size: Math.ceil(params.length / 16) * 16, usage });
    this.device.queue.writeBuffer(buffer, 0, params);
    this.#plans.set(++this.#numbers, { params: buffer, runs: [] });
    return this.#numbers;
  }

  dispatch(plan: number, shader: number, offset: number, size: number, buffers: Uint32Array, x: number, y: number): void {
    const { params, runs } = this.#plans.get(plan) as Plan;
    const { pipeline, name, readsStep } = this.#shaders[shader] as Shader;
    const storage = Array.from(buffers, (number) => ({ buffer: this.#buffer(number) }));
    const resources = [{ buffer: params, offset, size }, ...(readsStep ? [{ buffer: this.#step }] : []), ...storage];
    const entries = resources.map((resource, binding) => ({ binding, resource }));
    runs.push({ pipeline, bindings: this.device.createBindGroup({ label: name, layout: pipeline.getBindGroupLayout(0), entries }), x, y });
  }

  freePlan(plan: number): void {
    this.#submit();
    if (plan === this.#last) {
      this.#last = 0;
      this.#isRepeated = false;
      this.#ahead = undefined;
    }
    this.#plans.get(plan)?.params.destroy();
    this.#plans.delete(plan);
  }

  run(plan: number, pos: number): void {
    this.#submit();
    this.device.queue.writeBuffer(this.#step, 0, new Uint32Array([pos, 0, 0, 0]));
    this.#isRepeated = plan === this.#last;
    this.#encoder = (this.#isRepeated && this.#ahead) || this.#encode(plan);
    this.#ahead = undefined;
    this.#last = plan;
  }

  ask(buffer: number, bytes: number): void {
    const asked = ++this.#asked;
    this.#answer = undefined;
    const answer = bytes > 0 ? this.#read(buffer, bytes) : this.#end();
    const done = answer.then(
      (bytes) => {
        if (asked === this.#asked) this.#answer = bytes;
      },
      (error: unknown) => this.#fail(new LowbitError('device', `GPU: results cannot be read: ${String(error)}`)),
    );
    // A device that is lost may leave everything open.
    this.#pending = Promise.race([done, this.#lost]);
    if (this.#isRepeated) this.#ahead ??= this.#encode(this.#last);
  }

  take(): Uint8Array | undefined {
    if (this.#failure) throw this.#failure;
    return this.#answer;
  }

  #encode(plan: number): GPUCommandEncoder {
    const encoder = this.device.createCommandEncoder({ label: 'step' });
    const pass = encoder.beginComputePass();
    for (const { pipeline, bindings, x, y } of (this.#plans.get(plan) as Plan).runs) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, bindings);
      pass.dispatchWorkgroups(x, y);
    }
    pass.end();
    return encoder;
  }

  async #read(buffer: number, bytes: number): Promise<Uint8Array> {
    const encoder = (this.#encoder ??= this.device.createCommandEncoder({ label: 'read' }));
    const copy = this.#staging(bytes);
    encoder.copyBufferToBuffer(this.#buffer(buffer), 0, copy, 0, bytes);
    this.#submit();
    await copy.mapAsync(GPUMapMode.READ, 0, bytes);
    const result = new Uint8Array(copy.getMappedRange(0, bytes)).slice();
    copy.unmap();
    if (this.#copy) copy.destroy();
    else this.#copy = copy;
    return result;
  }

  async #end(): Promise<Uint8Array> {
    this.#submit();
    await this.device.queue.onSubmittedWorkDone();
    return new Uint8Array(0);
  }

  /** A buffer that results can be read from; the last one, if it is free and large enough. */
  #staging(bytes: number): GPUBuffer {
    const last = this.#copy;
    this.#copy = undefined;
    if (last && last.size >= bytes) return last;
    last?.destroy();
    return this.device.createBuffer({ label: 'results', size: bytes, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
  }

  #submit(): void {
    if (!this.#encoder) return;
    this.device.queue.submit([this.#encoder.finish()]);
    this.#encoder = undefined;
  }

  #buffer(number: number): GPUBuffer {
    return this.#buffers[number] as GPUBuffer;
  }

  /** Ends the error scope that was begun last. */
  #check(describe: (error: GPUError) => LowbitError): void {
    const found = this.device.popErrorScope().then((error) => error && this.#fail(describe(error)));
    found.catch(() => undefined); // the device was lost, which is told elsewhere
  }

  #fail(error: LowbitError): void {
    this.#failure ??= error;
  }
}
