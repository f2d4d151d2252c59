import { LowbitError, abortError, errorData } from '../errors.js';
import type { GenerateRequest, LoadRequest, ParityRequest, Prompt } from '../protocol.js';
import type { Activations, ChatResult, FinishReason, MemoryUse, ModelInfo } from '../types.js';
import { abilities, chooseVariant, threadsWarning } from '../variant.js';
import { Gpu } from './gpu.js';
import { loadBytes, type Loaded, type Reporter } from './loader.js';
import { SlowerGpu } from './tuning.js';
import { Wasm, type Engine } from './wasm.js';

/** What one step of an answer did, as the engine reports it. */
type StepEvent =
  | { type: 'prefill'; done: number; total: number }
  | { type: 'token'; id: number; text: string }
  | { type: 'done'; reason: FinishReason; text: string };

/** Receives an answer as it comes, and what happens to the model meanwhile. */
export interface AnswerSink {
  text(text: string): void;
  prefill(done: number, total: number): void;
}

/** What a session tells while it works. */
export interface SessionReporter extends Pick<Reporter, 'warning'> {
  /** The model runs elsewhere now. */
  info(info: ModelInfo): void;
}

/** A GPU that is lost again within this time is not tried once more. */
const LOSS_PAUSE_MS = 60_000;

/** What an engine runs on, and how it came there. */
interface Running {
  engine: Engine;
  gpu: Gpu | undefined;
  data: Omit<Loaded, 'artifact'>;
  info: EngineInfo;
}

/** A loaded model in this worker. */
export class Session {
  #info!: ModelInfo;
  #running!: Running;
  #engineWasm!: Wasm;
  #lastLoss = -Infinity;

  private constructor(
    private readonly request: LoadRequest,
    private readonly wasm: Promise<Wasm>,
    private readonly onHelper: (port: MessagePort) => void,
  ) {}

  /** Starts the engine, brings the model to its device and builds it. `onHelper` gets the port of every helper. */
  static async load(
    request: LoadRequest,
    report: Reporter,
    onHelper: (port: MessagePort) => void,
    signal: AbortSignal,
  ): Promise<Session> {
    const begin = performance.now();
    const variant = chooseVariant(abilities(), request.threads, request.variant);
    report.progress({ phase: 'engine', loaded: 0, total: 0, resumed: 0 });
    const starting = Wasm.start(request.wasmUrls[variant], variant, signal);
    const engineMs = starting.then(() => performance.now() - begin);
    engineMs.catch(() => undefined);
    const session = new Session(request, starting, onHelper);
    const { loaded, built } = await session.#load(report, signal);
    session.#engineWasm = await starting;
    const { data, info } = session.#running;
    const end = performance.now();
    session.#info = {
      ...info,
      ...session.#device(),
      variant,
      bytes: data.bytes,
      from: data.from,
      kept: data.kept,
      loadMs: { engine: await engineMs, data: loaded - begin, start: built, total: end - begin },
    };
    return session;
  }

  /** What the model is and how it runs. */
  get info(): ModelInfo {
    return this.#info;
  }

  /** Loads onto the device that was asked for; onto the CPU where a GPU does not serve. */
  async #load(report: Reporter, signal: AbortSignal): Promise<{ loaded: number; built: number }> {
    const gpu = await this.#openGpu();
    if (gpu) {
      try {
        return await this.#loadOn(gpu, report, signal);
      } catch (error) {
        gpu.close();
        if (signal.aborted || !isOfGpu(error)) throw error;
        const code = error instanceof SlowerGpu ? 'gpu-slower' : 'gpu-failed';
        report.warning({ code, message: `the model runs on the CPU: ${errorData(error).message}` });
      }
    }
    return this.#loadOn(undefined, report, signal);
  }

  async #openGpu(): Promise<Gpu | undefined> {
    const { device } = this.request;
    if (device === 'cpu') return undefined;
    const gpu = await Gpu.open(device === 'webgpu');
    if (gpu || device === 'auto') return gpu;
    const message = 'this browser offers no WebGPU adapter; use device: "auto", which runs on the CPU then';
    throw new LowbitError('unsupported-device', message);
  }

  /** When the data were there, and how long the model took to build. */
  async #loadOn(gpu: Gpu | undefined, report: Reporter, signal: AbortSignal): Promise<{ loaded: number; built: number }> {
    const { request } = this;
    const helpers = gpu ? Promise.resolve() : this.#startHelpers(report);
    helpers.catch(() => undefined);
    const { activations, context, threads, device } = request;
    // A team of fewer threads is the engine's own matter.
    const options = JSON.stringify({ threads, activations, context });
    const { artifact, ...data } = await loadBytes(request, this.wasm, report, signal, { gpu, options, mayRefuse: device === 'auto' });
    await helpers;
    const wasm = await this.wasm;
    const loaded = performance.now();
    if (signal.aborted) throw abortError(signal);
    report.progress({ phase: 'start', loaded: data.bytes, total: data.bytes, resumed: 0 });
    const engine = artifact.start();
    try {
      while (gpu && !wasm.call(() => engine.check())) await gpu.settled();
      await gpu?.finish();
    } catch (error) {
      wasm.free(engine);
      throw error;
    }
    const info = JSON.parse(wasm.call(() => engine.info())) as EngineInfo;
    this.#running = { engine, gpu, data, info };
    return { loaded, built: performance.now() - loaded };
  }

  async #startHelpers(report: Pick<Reporter, 'warning'>): Promise<void> {
    const { threads, variant } = this.request;
    const warning = threadsWarning(abilities(), threads, variant);
    if (warning) report.warning(warning);
    const wasm = await this.wasm;
    await wasm.startHelpers(threads, this.onHelper);
    if (wasm.variant === 'threads' && wasm.threads < threads) {
      report.warning({
        code: 'fewer-threads',
        message: `the browser could not start all threads of the engine: it runs on ${wasm.threads} of ${threads}`,
      });
    }
  }

  /** What the model's info says of the device. */
  #device(): Pick<ModelInfo, 'device' | 'adapter'> {
    const { gpu } = this.#running;
    return gpu ? { device: 'webgpu', adapter: gpu.adapter } : { device: 'cpu', adapter: undefined };
  }

  /** Writes an answer. Between two steps the worker looks for messages, so that an abort is seen. */
  async generate(
    request: GenerateRequest,
    sink: AnswerSink,
    report: SessionReporter,
    signal: AbortSignal,
  ): Promise<ChatResult> {
    const begin = performance.now();
    let firstTokenMs = 0;
    let text = '';
    const { maxTokens, sampling, stop } = request;
    await this.#ready(report, signal);
    this.#begin(request.prompt, { maxTokens, sampling, stop });
    try {
      for (;;) {
        const event = JSON.parse(await this.#step((engine) => engine.step(), report, signal)) as StepEvent;
        if (event.type === 'prefill') {
          sink.prefill(event.done, event.total);
          continue;
        }
        firstTokenMs ||= performance.now() - begin;
        text += event.text;
        if (event.text !== '') sink.text(event.text);
        if (event.type === 'done') return { text, finishReason: event.reason, firstTokenMs, ...this.#end() };
      }
    } catch (error) {
      this.#drop(error);
      throw error;
    }
  }

  tokenize(text: string): number[] {
    return Array.from(this.#call((engine) => engine.tokenize(text)));
  }

  memory(): MemoryUse {
    const parts = JSON.parse(this.#call((engine) => engine.memory())) as Omit<MemoryUse, 'total'>;
    const onGpu = this.#running.gpu ? parts.weights + parts.kvCache : 0;
    return { total: this.#engineWasm.memoryBytes + onGpu, ...parts };
  }

  /** The hash of the logits of a prompt's last position. */
  async parity(
    request: ParityRequest,
    report: SessionReporter,
    signal: AbortSignal,
  ): Promise<{ logitsSha256: string; positions: number }> {
    const prompt = JSON.stringify(request.prompt);
    await this.#ready(report, signal);
    const positions = this.#call((engine) => engine.parityBegin(prompt, request.chunk, request.length));
    return { logitsSha256: await this.#step((engine) => engine.parityStep(), report, signal), positions };
  }

  /** Repeats a step until it gives something: it gives nothing while the device works. */
  async #step(step: (engine: Engine) => string | undefined, report: SessionReporter, signal: AbortSignal): Promise<string> {
    for (;;) {
      await breathe();
      if (signal.aborted) throw abortError(signal);
      try {
        const result = this.#call(step);
        if (result !== undefined) return result;
        await this.#running.gpu?.settled();
      } catch (error) {
        if (!this.#running.gpu || !isOfGpu(error)) throw error;
        await this.#repair(error, report, signal);
      }
    }
  }

  /** Repairs what was lost while nothing was asked. */
  async #ready(report: SessionReporter, signal: AbortSignal): Promise<void> {
    const { gpu } = this.#running;
    if (gpu?.isLost) await this.#repair(new LowbitError('device', 'GPU: the device was lost'), report, signal);
  }

  /**
   * Moves the model to another device, after its own has failed: to a new one of the GPU, or, if that was lost a short time
   * ago too or has failed otherwise, to the CPU. The answer goes on there.
   */
  async #repair(error: unknown, report: SessionReporter, signal: AbortSignal): Promise<void> {
    const { engine, gpu } = this.#running;
    const wasm = this.#engineWasm;
    const now = performance.now();
    const retry = (await gpu?.wasLost()) === true && now - this.#lastLoss > LOSS_PAUSE_MS;
    this.#lastLoss = now;
    gpu?.close();
    const quiet: Reporter = { progress: () => undefined, warning: (warning) => report.warning(warning) };
    const reason = errorData(error).message;
    const next = retry ? await Gpu.open(this.request.device === 'webgpu') : undefined;
    const goesOn = next ? 'the model is brought back to it' : 'the model goes on on the CPU';
    report.warning({ code: next ? 'gpu-lost' : 'gpu-failed', message: `${reason}; ${goesOn}` });
    try {
      await this.#loadOn(next, quiet, signal);
    } catch (failure) {
      next?.close();
      if (!next || signal.aborted || !isOfGpu(failure)) throw failure;
      report.warning({ code: 'gpu-failed', message: `the model goes on on the CPU: ${errorData(failure).message}` });
      await this.#loadOn(undefined, quiet, signal);
    }
    wasm.call(() => this.#running.engine.adopt(engine));
    report.info((this.#info = { ...this.#info, ...this.#running.info, ...this.#device() }));
  }

  #call<T>(work: (engine: Engine) => T): T {
    return this.#engineWasm.call(() => work(this.#running.engine));
  }

  #begin(prompt: Prompt, options: object): void {
    this.#call((engine) => engine.begin(JSON.stringify(prompt), JSON.stringify(options)));
  }

  #end(): AnswerStats {
    return JSON.parse(this.#call((engine) => engine.end())) as AnswerStats;
  }

  /** Gives an answer up. An engine that has stopped has none left to give up. */
  #drop(error: unknown): void {
    if (error instanceof LowbitError && error.code === 'engine-crashed') return;
    this.#call((engine) => engine.abort());
  }
}

/** Whether an error is one that another device does not have. */
function isOfGpu(error: unknown): boolean {
  const { code, message } = errorData(error);
  return code === 'device' || (code === 'out-of-memory' && message.includes('GPU'));
}

/** What the engine says about an answer. */
type AnswerStats = Omit<ChatResult, 'text' | 'finishReason' | 'firstTokenMs'>;

/** What the engine says about a model. */
type EngineInfo = Pick<
  ModelInfo,
  'name' | 'architecture' | 'context' | 'sampling' | 'isa' | 'kernels' | 'threads' | 'fingerprint' | 'licence'
> & { activations: Activations };

const channel = new MessageChannel();
let wake: (() => void) | undefined;
channel.port1.onmessage = () => wake?.();

/** Lets waiting messages through. */
function breathe(): Promise<void> {
  return new Promise((resolve) => {
    wake = resolve;
    channel.port2.postMessage(null);
  });
}
