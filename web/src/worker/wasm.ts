import { LowbitError, abortError, crashed, isErrorData } from '../errors.js';
import type { FromHelper, HelperFailure, HelperStart } from '../protocol.js';
import type { Variant } from '../types.js';
import * as shared from '../../wasm/shared.js';
import * as single from '../../wasm/single.js';
import type { Gpu } from './gpu.js';
import { setFallback } from './sha256.js';
import { chooseVariants } from './tuning.js';

/** The engine's functions and classes, the same in every module. */
export type Glue = typeof single;

/** A running instance of the engine. */
export class Wasm {
  #crash: LowbitError | undefined;
  #threads = 1;

  private constructor(
    readonly glue: Glue,
    readonly variant: Variant,
    private readonly module: WebAssembly.Module,
    private readonly memory: WebAssembly.Memory,
  ) {
    setFallback((bytes) => glue.sha256(bytes));
  }

  /** Fetches, compiles and starts a module. */
  static async start(url: string, variant: Variant, signal: AbortSignal): Promise<Wasm> {
    const module = await compile(url, signal);
    if (variant !== 'threads') {
      const { memory } = instantiate(() => single.initSync({ module }));
      return new Wasm(single, variant, module, memory);
    }
    const { memory } = instantiate(() => shared.initSync({ module }));
    return new Wasm(shared as unknown as Glue, variant, module, memory);
  }

  /** Threads of the team. */
  get threads(): number {
    return this.#threads;
  }

  /** Starts helpers one after the other until the team has `threads`; `onHelper` gets the port of each. */
  async startHelpers(threads: number, onHelper: (port: MessagePort) => void): Promise<void> {
    if (this.variant !== 'threads') return;
    const { module, memory } = this;
    // One at a time: each allocates its stack in the shared memory when it starts.
    while (this.#threads < threads && (await startHelper({ type: 'helper', index: this.#threads, module, memory }, onHelper))) {
      this.#threads++;
    }
  }

  /** Bytes of memory that the engine holds. */
  get memoryBytes(): number {
    return this.memory.buffer.byteLength;
  }

  /** A part of the engine's memory. It is void as soon as the engine allocates. */
  view(pointer: number, length: number): Uint8Array {
    return new Uint8Array(this.memory.buffer, pointer, length);
  }

  /** Calls the engine. Whatever it throws that is no error of its own, a trap or an exhausted stack, ends it. */
  call<T>(work: (glue: Glue) => T): T {
    // A lock that was held when it stopped would never be free again.
    if (this.#crash) throw this.#crash;
    try {
      return work(this.glue);
    } catch (thrown) {
      if (isErrorData(thrown)) throw thrown;
      throw (this.#crash = crashed(cause(this.glue, thrown)));
    }
  }

  /** Frees an object of the engine; the memory of an engine that has stopped goes with its worker. */
  free(object: { free(): void }): void {
    if (!this.#crash) this.call(() => object.free());
  }
}

/** What made the engine stop. A trap without a panic is what is left of an allocation that failed. */
function cause(glue: Pick<Glue, 'lastPanic'>, thrown: unknown): string {
  const trapped = thrown instanceof WebAssembly.RuntimeError;
  try {
    return glue.lastPanic() ?? (trapped ? `${thrown.message}, most likely out of memory` : String(thrown));
  } catch {
    return String(thrown);
  }
}

/** A model that answers. */
export type Engine = single.Engine;

/** Where the data of a model goes as it arrives, from its start to its end. */
export interface Destination {
  /** Bytes of the data. */
  readonly dataLength: number;
  /** Room for the data at `offset`, to be read into. It is void as soon as the engine allocates. */
  view(offset: number, length: number): Uint8Array;
  /** Takes what was read into {@link view}. */
  filled(view: Uint8Array): void;
  /** Takes data that lie elsewhere. */
  write(offset: number, bytes: Uint8Array): void;
  /** Settles when the device has what it was given; throws when it has no room for it. */
  settled(): Promise<void>;
  /** The artifact before its data. */
  header(): Uint8Array<ArrayBuffer>;
  /** Builds the model; this object is used up. */
  start(): Engine;
  free(): void;
}

/** A device for a model, and how the model is to run there. */
export interface Target {
  /** Nothing: the CPU. */
  gpu: Gpu | undefined;
  /** For the engine, in JSON. */
  options: string;
  /** Whether a GPU that is clearly slower than the CPU may be refused. */
  mayRefuse: boolean;
}

/** Checks a header and makes room for its data: on the GPU, if it computes rightly, or in the engine's memory. */
export async function destination(wasm: Wasm, name: string, header: Uint8Array, target: Target): Promise<Destination> {
  const { gpu, options } = target;
  if (!gpu) return ArtifactMemory.of(wasm, name, header, options);
  const choice = await chooseVariants(wasm, name, header, gpu, target);
  const of = (choice?: string) => GpuModel.of(wasm, gpu, (glue) => new glue.GpuArtifact(name, header, gpu, options, choice));
  // The variants that ask for nothing, if these compute wrongly.
  return of(choice).catch((error: unknown) => {
    if (gpu.hasFailed) throw error;
    return of();
  });
}

/** A model that moves to the GPU while it arrives. */
export class GpuModel implements Destination {
  readonly dataLength: number;
  readonly #inner: single.GpuArtifact;
  #staging = new Uint8Array(0);

  private constructor(
    private readonly wasm: Wasm,
    private readonly gpu: Gpu,
    inner: single.GpuArtifact,
  ) {
    this.#inner = inner;
    this.dataLength = inner.dataLength;
  }

  /** What `make` makes, if the GPU computes rightly with it. */
  static of(wasm: Wasm, gpu: Gpu, make: (glue: Glue) => single.GpuArtifact): Promise<GpuModel> {
    return new GpuModel(wasm, gpu, wasm.call(make)).#tested();
  }

  /** Moves a model that is whole in memory, which is used up. */
  static async from(wasm: Wasm, name: string, artifact: ArtifactMemory, gpu: Gpu, target: Target): Promise<GpuModel> {
    const choice = await chooseVariants(wasm, name, artifact.header(), gpu, target);
    return GpuModel.of(wasm, gpu, (glue) => glue.GpuArtifact.of(artifact.release(), gpu, target.options, choice));
  }

  /** This, after the GPU has been compared with the CPU; throws when it computes wrongly. */
  async #tested(): Promise<this> {
    try {
      while (!this.wasm.call(() => this.#inner.check())) await this.gpu.settled();
      return this;
    } catch (error) {
      this.free();
      throw error;
    }
  }

  view(_offset: number, length: number): Uint8Array {
    if (this.#staging.length < length) this.#staging = new Uint8Array(length);
    return this.#staging.subarray(0, length);
  }

  filled(view: Uint8Array): void {
    this.wasm.call(() => this.#inner.push(view));
  }

  write(_offset: number, bytes: Uint8Array): void {
    this.filled(bytes);
  }

  settled(): Promise<void> {
    return this.gpu.finish();
  }

  header(): Uint8Array<ArrayBuffer> {
    return this.wasm.call(() => this.#inner.header()) as Uint8Array<ArrayBuffer>;
  }

  start(): Engine {
    return this.wasm.call(() => this.#inner.start());
  }

  free(): void {
    this.wasm.free(this.#inner);
  }
}

/** The memory of a model whose bytes arrive piece by piece. */
export class ArtifactMemory implements Destination {
  readonly dataLength: number;
  readonly #inner: single.Artifact;

  private constructor(
    private readonly wasm: Wasm,
    inner: single.Artifact,
    private readonly options: string,
  ) {
    this.#inner = inner;
    this.dataLength = inner.dataLength;
  }

  /** Checks a header and asks for memory for its data. */
  static of(wasm: Wasm, name: string, header: Uint8Array, options: string): ArtifactMemory {
    return new ArtifactMemory(wasm, wasm.call((glue) => new glue.Artifact(name, header)), options);
  }

  /** Takes what an importer has packed; `chunks` are the hashes of its chunks. */
  static from(wasm: Wasm, importer: GgufImport, chunks: string[], options: string): ArtifactMemory {
    return new ArtifactMemory(wasm, importer.finish(chunks), options);
  }

  view(offset: number, length: number): Uint8Array {
    return this.wasm.view(this.#inner.pointer() + offset, length);
  }

  filled(): void {
    // It is where it belongs.
  }

  settled(): Promise<void> {
    return Promise.resolve();
  }

  /** What this object wraps, which it has no more. */
  release(): single.Artifact {
    return this.#inner;
  }

  write(offset: number, bytes: Uint8Array): void {
    this.view(offset, bytes.length).set(bytes);
  }

  header(): Uint8Array<ArrayBuffer> {
    return this.wasm.call(() => this.#inner.header()) as Uint8Array<ArrayBuffer>;
  }

  start(): Engine {
    return this.wasm.call((glue) => glue.Engine.start(this.#inner, this.options));
  }

  free(): void {
    this.wasm.free(this.#inner);
  }
}

/** Packs a GGUF file whose bytes arrive piece by piece. */
export class GgufImport {
  readonly #inner: single.GgufImport;

  constructor(
    private readonly wasm: Wasm,
    name: string,
    size: number,
  ) {
    this.#inner = wasm.call((glue) => new glue.GgufImport(name, size));
  }

  /** Takes the next bytes of the file's start. Returns how many more the header needs at least; 0 when it is whole. */
  header(part: Uint8Array): number {
    return this.wasm.call(() => this.#inner.header(part));
  }

  /** The next part of the file that is needed, in the order of the file; `undefined` when all is there. */
  next(): { offset: number; length: number } | undefined {
    const next = this.wasm.call(() => this.#inner.next());
    return next && { offset: next[0] as number, length: next[1] as number };
  }

  /** Packs the part that {@link next} named. */
  put(bytes: Uint8Array): void {
    this.wasm.call(() => this.#inner.put(bytes));
  }

  /** What has been packed. It is void as soon as the engine allocates. */
  packed(): Uint8Array {
    const [pointer = 0, length = 0] = this.#inner.packed();
    return this.wasm.view(pointer, length);
  }

  /** The packed model; this object is used up. */
  finish(chunks: string[]): single.Artifact {
    return this.wasm.call(() => this.#inner.finish(chunks));
  }

  free(): void {
    this.wasm.free(this.#inner);
  }
}

/** What to do when the engine is not where it should be. */
const WHERE = "serve the package's folder `wasm` there, or say with `wasmUrl` where it is";

/** Fetches and compiles the module. */
async function compile(url: string, signal: AbortSignal): Promise<WebAssembly.Module> {
  let response: Response;
  try {
    response = await fetch(url, { signal });
  } catch (cause) {
    if (signal.aborted) throw abortError(signal);
    const message = `${url}: the engine cannot be fetched (offline, or refused by CORS or by a CSP, whose connect-src must allow it); ${WHERE}`;
    throw new LowbitError('network', message, { cause });
  }
  if (!response.ok) throw new LowbitError('network', `${url}: the server answered ${response.status} for the engine; ${WHERE}`);
  const type = response.headers.get('Content-Type') ?? '';
  if (type.startsWith('text/html')) {
    throw new LowbitError('network', `${url}: the server answered with a web page, not with the engine; ${WHERE}`);
  }
  try {
    if (type.startsWith('application/wasm')) return await WebAssembly.compileStreaming(response);
    return await WebAssembly.compile(await response.arrayBuffer());
  } catch (cause) {
    if (signal.aborted) throw abortError(signal);
    const message = `${url}: the engine cannot be compiled (${String(cause)}); a page's CSP must allow 'wasm-unsafe-eval'`;
    throw new LowbitError('unsupported-browser', message, { cause });
  }
}

/** Makes an instance and its memory. */
function instantiate<T>(make: () => T): T {
  try {
    return make();
  } catch (cause) {
    const message = `the engine cannot have memory in this browser (${String(cause)}); close other pages, or load with threads: 1`;
    throw new LowbitError('out-of-memory', message, { cause });
  }
}

/** Starts a helper; whether it has come. The engine does with fewer. */
async function startHelper(start: Omit<HelperStart, 'port'>, onHelper: (port: MessagePort) => void): Promise<boolean> {
  // The helper runs this very script: bundlers need not know of it.
  const worker = new Worker(self.location.href, { type: 'module', name: `lowbit-${start.index}` });
  const { port1, port2 } = new MessageChannel();
  const ready = await new Promise<boolean>((resolve) => {
    worker.onmessage = (event: MessageEvent<FromHelper>) => resolve(event.data.type === 'ready');
    worker.onerror = (event) => {
      event.preventDefault();
      resolve(false);
    };
    worker.onmessageerror = () => resolve(false);
    worker.postMessage({ ...start, port: port2 } satisfies HelperStart, [port2]);
  });
  if (ready) onHelper(port1);
  else worker.terminate();
  return ready;
}

/** What a helper does for the rest of its life: takes part in the engine's work. */
export function help(start: HelperStart, ready: (message: FromHelper) => void): void {
  let helper: shared.Helper;
  try {
    shared.initSync({ module: start.module, memory: start.memory });
    // Before the answer: the engine counts its helpers as soon as it has it.
    helper = new shared.Helper();
  } catch (error) {
    ready({ type: 'failed', message: String(error) });
    return;
  }
  ready({ type: 'ready' });
  try {
    helper.help();
  } catch (thrown) {
    start.port.postMessage(cause(shared, thrown) satisfies HelperFailure);
  }
}
