import { LowbitError, abortError } from '../errors.js';
import type { GenerateRequest, LoadRequest, ParityRequest, Prompt } from '../protocol.js';
import type { Activations, ChatResult, FinishReason, MemoryUse, ModelInfo } from '../types.js';
import { abilities, chooseVariant, threadsWarning } from '../variant.js';
import { loadBytes, type Reporter } from './loader.js';
import { Wasm, type Engine } from './wasm.js';

/** What one step of an answer did, as the engine reports it. */
type StepEvent =
  | { type: 'prefill'; done: number; total: number }
  | { type: 'token'; id: number; text: string }
  | { type: 'done'; reason: FinishReason; text: string };

/** Receives an answer as it comes. */
export interface AnswerSink {
  text(text: string): void;
  prefill(done: number, total: number): void;
}

/** A loaded model in this worker. */
export class Session {
  private constructor(
    private readonly wasm: Wasm,
    private readonly engine: Engine,
    readonly info: ModelInfo,
  ) {}

  /** Starts the engine, brings the model into its memory and builds it. `onHelper` gets the port of every helper. */
  static async load(
    request: LoadRequest,
    report: Reporter,
    onHelper: (port: MessagePort) => void,
    signal: AbortSignal,
  ): Promise<Session> {
    const begin = performance.now();
    const can = abilities();
    const variant = chooseVariant(can, request.threads, request.variant);
    const warning = threadsWarning(can, request.threads, request.variant);
    if (warning) report.warning(warning);
    report.progress({ phase: 'engine', loaded: 0, total: 0, resumed: 0 });
    const starting = Wasm.start(request.wasmUrls[variant], variant, request.threads, onHelper, signal);
    const engineMs = starting.then(() => performance.now() - begin);
    engineMs.catch(() => undefined);
    const data = await loadBytes(request, starting, report, signal);
    const wasm = await starting;
    if (variant === 'threads' && wasm.threads < request.threads) {
      report.warning({
        code: 'fewer-threads',
        message: `the browser could not start all threads of the engine: it runs on ${wasm.threads} of ${request.threads}`,
      });
    }
    const dataEnd = performance.now();
    if (signal.aborted) throw abortError(signal);
    report.progress({ phase: 'start', loaded: data.bytes, total: data.bytes, resumed: 0 });
    const options = JSON.stringify({
      threads: wasm.threads,
      activations: request.activations,
      context: request.context,
    });
    const engine = data.artifact.start(options);
    const info = JSON.parse(wasm.call(() => engine.info())) as EngineInfo;
    const end = performance.now();
    return new Session(wasm, engine, {
      ...info,
      device: 'cpu',
      variant,
      bytes: data.bytes,
      from: data.from,
      kept: data.kept,
      loadMs: { engine: await engineMs, data: dataEnd - begin, start: end - dataEnd, total: end - begin },
    });
  }

  /** Writes an answer. Between two steps the worker looks for messages, so that an abort is seen. */
  async generate(request: GenerateRequest, sink: AnswerSink, signal: AbortSignal): Promise<ChatResult> {
    const begin = performance.now();
    let firstTokenMs = 0;
    let text = '';
    const { maxTokens, sampling, stop } = request;
    this.#begin(request.prompt, { maxTokens, sampling, stop });
    try {
      for (;;) {
        await breathe();
        if (signal.aborted) throw abortError(signal);
        const event = JSON.parse(this.wasm.call(() => this.engine.step())) as StepEvent;
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
    return Array.from(this.wasm.call(() => this.engine.tokenize(text)));
  }

  memory(): MemoryUse {
    const parts = JSON.parse(this.wasm.call(() => this.engine.memory())) as Omit<MemoryUse, 'total'>;
    return { total: this.wasm.memoryBytes, ...parts };
  }

  /** The hash of the logits of a prompt's last position. */
  async parity(request: ParityRequest, signal: AbortSignal): Promise<{ logitsSha256: string; positions: number }> {
    const prompt = JSON.stringify(request.prompt);
    const positions = this.wasm.call(() => this.engine.parityBegin(prompt, request.chunk, request.length));
    for (;;) {
      await breathe();
      if (signal.aborted) throw abortError(signal);
      const logitsSha256 = this.wasm.call(() => this.engine.parityStep());
      if (logitsSha256 !== undefined) return { logitsSha256, positions };
    }
  }

  #begin(prompt: Prompt, options: object): void {
    this.wasm.call(() => this.engine.begin(JSON.stringify(prompt), JSON.stringify(options)));
  }

  #end(): AnswerStats {
    return JSON.parse(this.wasm.call(() => this.engine.end())) as AnswerStats;
  }

  /** Gives an answer up. An engine that has stopped has none left to give up. */
  #drop(error: unknown): void {
    if (error instanceof LowbitError && error.code === 'engine-crashed') return;
    this.wasm.call(() => this.engine.abort());
  }
}

/** What the engine says about an answer. */
type AnswerStats = Omit<ChatResult, 'text' | 'finishReason' | 'firstTokenMs'>;

/** What the engine says about a model. */
type EngineInfo = Pick<
  ModelInfo,
  'name' | 'architecture' | 'context' | 'sampling' | 'isa' | 'threads' | 'fingerprint' | 'licence'
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
