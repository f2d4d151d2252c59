import { LowbitError, abortError, crashed, errorFrom } from './errors.js';
import type { CallMessage, CallName, Calls, FromWorker, HelperFailure, ToWorker } from './protocol.js';

/** Receives what a call reports before its result. */
export type Listener = (message: Exclude<CallMessage, { type: 'result' | 'error' }>) => void;

interface Pending {
  resolve: (value: never) => void;
  reject: (error: LowbitError) => void;
  listener?: Listener | undefined;
}

/**
 * The page's end of the line to the engine's worker. When that worker or one of its helpers fails, the connection is
 * closed for good: the engine's memory may be in any state, and what waits for a lost helper waits forever.
 */
export class Connection {
  readonly #worker: Worker;
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #heard = false;
  #closed: LowbitError | undefined;

  /** `script` says where the worker's script is. */
  constructor(worker: Worker, script: () => string) {
    this.#worker = worker;
    worker.onmessage = (event: MessageEvent<FromWorker>) => this.#receive(event.data);
    worker.onerror = (event) => {
      event.preventDefault();
      // A script that runs says what went wrong; one that does not come says nothing.
      if (event.message || this.#heard) this.#fail(event.message || 'it gave no reason');
      else this.close(scriptError(script()));
    };
    worker.onmessageerror = () => this.#fail('a message of it could not be read');
  }

  /** Calls the worker. An abort makes the worker end the call early; the promise rejects when it has. */
  call<N extends CallName>(
    name: N,
    argument: Calls[N][0],
    options: { signal?: AbortSignal | undefined; listener?: Listener } = {},
  ): Promise<Calls[N][1]> {
    const { signal, listener } = options;
    if (this.#closed) return Promise.reject(this.#closed);
    if (signal?.aborted) return Promise.reject(abortError(signal));
    const id = this.#nextId++;
    const onAbort = () => this.#post({ type: 'abort', id });
    signal?.addEventListener('abort', onAbort, { once: true });
    return new Promise<Calls[N][1]>((resolve, reject) => {
      const rejectWith = (error: LowbitError) => reject(error.code === 'aborted' ? abortError(signal) : error);
      this.#post({ type: 'call', id, name, argument } as ToWorker);
      this.#pending.set(id, { resolve, reject: rejectWith, listener });
    }).finally(() => signal?.removeEventListener('abort', onAbort));
  }

  /** Ends the worker; what is pending fails with `error`. */
  close(error: LowbitError): void {
    if (this.#closed) return;
    this.#closed = error;
    this.#worker.terminate();
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
  }

  #fail(what: string): void {
    this.close(new LowbitError('worker-failed', `the engine's worker failed: ${what}; load the model again`));
  }

  #post(message: ToWorker): void {
    try {
      this.#worker.postMessage(message);
    } catch (cause) {
      throw new LowbitError('bad-argument', `an argument cannot be sent to the engine: ${String(cause)}`, { cause });
    }
  }

  #receive(message: FromWorker): void {
    this.#heard = true;
    if (message.type === 'helper') {
      message.port.onmessage = (event: MessageEvent<HelperFailure>) => this.close(crashed(`a helper: ${event.data}`));
      return;
    }
    const pending = this.#pending.get(message.id);
    if (!pending) return;
    if (message.type === 'result') {
      this.#pending.delete(message.id);
      pending.resolve(message.value as never);
    } else if (message.type === 'error') {
      const error = errorFrom(message.error);
      this.#pending.delete(message.id);
      pending.reject(error);
      if (error.code === 'engine-crashed') this.close(error);
    } else {
      pending.listener?.(message);
    }
  }
}

/** The error for a worker whose script did not come. */
export function scriptError(url: string, cause?: unknown): LowbitError {
  const why = cause === undefined ? '' : ` (${String(cause)})`;
  const message =
    `${url}: the engine's worker, or a module that it imports, cannot be loaded${why}; serve it there as JavaScript, ` +
    "from the page's own origin, or say with `workerUrl` where it is; a CSP must allow it (worker-src)";
  return new LowbitError('worker-failed', message, { cause });
}
