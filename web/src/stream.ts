import { abortError, type LowbitError } from './errors.js';
import type { ChatResult } from './types.js';

/** What feeds a {@link ChatStream}. */
export interface Feed {
  text(piece: string): void;
}

/**
 * An answer that is being written. Iterate over it for the pieces of text as they come, or await it for the whole
 * {@link ChatResult}; both may be done. Leaving the loop early aborts the answer.
 */
export class ChatStream implements AsyncIterable<string>, PromiseLike<ChatResult> {
  /** Settles when the answer has ended. */
  readonly result: Promise<ChatResult>;
  readonly #pieces: string[] = [];
  readonly #abort = new AbortController();
  #wake: (() => void) | undefined;
  #done = false;

  /** @internal `start` begins the work and gives text to the feed until its promise settles. */
  constructor(start: (feed: Feed, signal: AbortSignal) => Promise<ChatResult>, whole: boolean, signal?: AbortSignal) {
    const combined = follow(this.#abort, signal);
    const feed: Feed = { text: (piece) => void (whole || this.#push(piece)) };
    this.result = start(feed, combined)
      .then((result) => {
        if (whole) this.#push(result.text);
        return result;
      })
      .catch((error: LowbitError) => {
        throw error.code === 'aborted' ? abortError(combined) : error;
      })
      .finally(() => {
        this.#done = true;
        this.#wake?.();
      });
    // Whoever only iterates gets the error from the iterator.
    this.result.catch(() => undefined);
  }

  /** Ends the answer early. */
  abort(reason?: unknown): void {
    this.#abort.abort(reason);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<string, void, undefined> {
    try {
      for (;;) {
        const piece = this.#pieces.shift();
        if (piece !== undefined) yield piece;
        else if (this.#done) break;
        else await new Promise<void>((wake) => (this.#wake = wake));
      }
      await this.result;
    } finally {
      if (!this.#done) this.abort();
    }
  }

  then<A = ChatResult, B = never>(
    fulfilled?: ((value: ChatResult) => A | PromiseLike<A>) | null,
    rejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return this.result.then(fulfilled, rejected);
  }

  #push(piece: string): void {
    if (piece === '') return;
    this.#pieces.push(piece);
    this.#wake?.();
  }
}

/** The signal of `controller`, which also aborts when `signal` does. */
function follow(controller: AbortController, signal?: AbortSignal): AbortSignal {
  if (signal?.aborted) controller.abort(signal.reason);
  signal?.addEventListener('abort', () => controller.abort(signal.reason), { once: true, signal: controller.signal });
  return controller.signal;
}
