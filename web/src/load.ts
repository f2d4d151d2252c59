import * as checked from './arguments.js';
import { LowbitError, abortError } from './errors.js';
import { Model } from './model.js';
import type { LoadRequest } from './protocol.js';
import { Connection, scriptError, type Listener } from './rpc.js';
import type { LoadOptions, ModelSource, Variant } from './types.js';

/** More threads than this rarely help: decoding is bound by memory. */
const MAX_DEFAULT_THREADS = 8;

/** No server that is well takes longer for the next bytes. */
const STALL_TIMEOUT_MS = 30_000;

/** Timers cannot wait longer. */
const MAX_TIMEOUT_MS = 0x7fff_ffff;

/**
 * Loads a model: an artifact (`.lowbit`) or a GGUF file, from a URL or from a file of the user.
 *
 * The engine runs in a worker, so the page never blocks. A download is verified piece by piece, kept in the browser's
 * storage, and resumed after an interruption.
 */
export async function loadModel(source: ModelSource, options: LoadOptions = {}): Promise<Model> {
  options ??= {};
  const { signal } = options;
  if (signal?.aborted) throw abortError(signal);
  const request = loadRequest(source, options);
  const connection = connect(options.workerUrl);
  const listener: Listener = (message) => {
    if (message.type === 'progress') options.onProgress?.(message.progress);
    else if (message.type === 'warning') options.onWarning?.(message.warning);
  };
  try {
    return new Model(connection, await connection.call('load', request, { signal, listener }), options.onWarning);
  } catch (error) {
    connection.close(new LowbitError('disposed', 'the model was not loaded'));
    throw error;
  }
}

/**
 * Deletes kept models from the browser's storage: that of `url`, or all. Returns how many there were, interrupted
 * downloads included. A model that another tab is reading is left alone.
 */
export async function forgetModels(url?: string | URL, options: Pick<LoadOptions, 'workerUrl'> = {}): Promise<number> {
  const connection = connect(options?.workerUrl);
  try {
    return await connection.call('forget', url === undefined ? {} : { url: absolute(url) });
  } finally {
    connection.close(new LowbitError('disposed', 'done'));
  }
}

function connect(url?: string | URL): Connection {
  if (typeof Worker !== 'function') {
    throw new LowbitError('unsupported-browser', 'there are no workers here; loadModel must run in a page');
  }
  const script = () => (url ? absolute(url) : ownScript());
  try {
    return new Connection(url ? new Worker(url, { type: 'module' }) : ownWorker(), script);
  } catch (cause) {
    throw scriptError(script(), cause);
  }
}

function ownWorker(): Worker {
  // Bundlers look for exactly this expression.
  return new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
}

/** Where {@link ownWorker} looks for its script. Only the expression that bundlers rewrite knows: a `Worker` that tells evaluates it. */
function ownScript(): string {
  const { Worker } = globalThis;
  let script = 'worker.js';
  const tell = function (url: URL) {
    script = String(url);
  };
  try {
    globalThis.Worker = tell as unknown as typeof Worker;
  } catch {
    return script; // the page has frozen its globals
  }
  try {
    ownWorker();
  } finally {
    globalThis.Worker = Worker;
  }
  return script;
}

function loadRequest(source: ModelSource, options: LoadOptions): LoadRequest {
  const { device = 'auto', threads = defaultThreads(), cache = true, verify = false, headers = {}, context, activations } = options;
  const { stallTimeout = STALL_TIMEOUT_MS } = options;
  if (!['auto', 'webgpu', 'cpu'].includes(device)) {
    throw new LowbitError('unsupported-device', `device: ${String(device)} is not supported; use "auto", "webgpu" or "cpu"`);
  }
  checked.integer('threads', threads, 1, 64);
  checked.integer('stallTimeout', stallTimeout, 1, MAX_TIMEOUT_MS);
  checked.oneOf('cache', cache, [true, false, 'only']);
  if (context !== undefined) checked.integer('context', context, 1, 0xffff_ffff);
  if (activations !== undefined) checked.oneOf('activations', activations, ['a8', 'a16']);
  if (options.variant !== undefined) checked.oneOf('variant', options.variant, ['base', 'relaxed', 'threads']);
  return {
    source: origin(source),
    wasmUrls: wasmUrls(options.wasmUrl),
    device,
    threads,
    cache,
    verify,
    headers,
    stallTimeout,
    ...(context !== undefined && { context }),
    ...(activations !== undefined && { activations }),
    ...(options.variant !== undefined && { variant: options.variant }),
  };
}

function origin(source: ModelSource): LoadRequest['source'] {
  if (source instanceof Blob) {
    return { blob: source, name: source instanceof File ? source.name : 'model' };
  }
  if (typeof source === 'string' ? source === '' : !(source instanceof URL)) {
    throw new LowbitError('bad-argument', `the model is ${source === '' ? 'an empty text' : String(source)}; expected a URL, a File or a Blob`);
  }
  return { url: absolute(source) };
}

function wasmUrls(overrides: Partial<Record<Variant, string | URL>> = {}): Record<Variant, string> {
  // Literal, so that bundlers see each of them.
  const urls: Record<Variant, URL | string> = {
    base: new URL('../wasm/base.wasm', import.meta.url),
    relaxed: new URL('../wasm/relaxed.wasm', import.meta.url),
    threads: new URL('../wasm/threads.wasm', import.meta.url),
    ...overrides,
  };
  return { base: absolute(urls.base), relaxed: absolute(urls.relaxed), threads: absolute(urls.threads) };
}

function absolute(url: string | URL): string {
  try {
    return new URL(url, globalThis.document?.baseURI ?? globalThis.location?.href).href;
  } catch (cause) {
    throw new LowbitError('bad-argument', `${String(url)} is not a URL`, { cause });
  }
}

function defaultThreads(): number {
  return Math.max(1, Math.min(globalThis.navigator?.hardwareConcurrency || 1, MAX_DEFAULT_THREADS));
}
