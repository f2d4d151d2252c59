import type { ByteSource, Reader, UrlSource } from './bytes.js';
import { StorageFailure, type Store } from './store.js';

/** Bytes that are read from storage at a time. */
const PART = 4 << 20;

/**
 * A file on a server whose bytes are kept as they come, so that an interrupted download goes on where it broke. Whether
 * they are kept is decided after the first bytes have been seen.
 */
export class KeptSource implements ByteSource {
  /** Parts that came before the decision. */
  #undecided: Uint8Array[] | undefined = [];
  #keeps = false;

  /** `end` bytes are there from an earlier download. */
  constructor(
    private readonly inner: UrlSource,
    private readonly store: Store,
    private end: number,
  ) {
    if (end > 0) {
      this.#keeps = true;
      this.#undecided = undefined;
    }
  }

  get name(): string {
    return this.inner.name;
  }

  get size(): number {
    return this.inner.size;
  }

  get version(): string {
    return this.inner.version;
  }

  get patience(): number {
    return this.inner.patience;
  }

  /** Keeps what has come and will come, or nothing. */
  async decide(keep: boolean): Promise<void> {
    const parts = this.#undecided;
    this.#undecided = undefined;
    if (!parts || !keep) return;
    this.#keeps = true;
    const { name, size, version } = this.inner;
    try {
      await this.store.clear();
      await this.store.saveState({ url: name, sourceSize: size, sourceVersion: version, chunks: 0, complete: false, bytes: 0 });
    } catch (error) {
      this.#giveUp(error);
    }
    for (const part of parts) await this.#append(part);
  }

  async open(offset: number, signal: AbortSignal): Promise<Reader> {
    let at = offset;
    let network = at < this.end ? undefined : await this.#openNetwork(at, signal);
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const part = at < this.end ? await this.#kept(at) : undefined;
          if (part) {
            at += part.length;
            return controller.enqueue(part);
          }
          network ??= await this.#openNetwork(at, signal);
          const { done, value } = await network.read();
          if (done) return controller.close();
          at += value.length;
          controller.enqueue(value);
        },
        cancel: (reason) => network?.cancel(reason),
      },
      { highWaterMark: 0 },
    ).getReader();
  }

  /** Bytes at `offset` that are kept. */
  async #kept(offset: number): Promise<Uint8Array | undefined> {
    const part = new Uint8Array(Math.min(PART, this.end - offset));
    const there = await this.store.read('source', part, offset).catch((error: unknown) => this.#giveUp(error));
    return there ? part : undefined;
  }

  /** The server's bytes from `offset` on; kept if nothing lies between them and what is kept already. */
  async #openNetwork(offset: number, signal: AbortSignal): Promise<Reader> {
    const reader = await this.inner.open(offset, signal);
    if (offset !== this.end) return reader;
    return {
      cancel: (reason) => reader.cancel(reason),
      read: async () => {
        const result = await reader.read();
        if (result.value && this.#undecided) this.#undecided.push(result.value);
        else if (result.value) await this.#append(result.value);
        return result;
      },
    };
  }

  async #append(part: Uint8Array): Promise<void> {
    if (!this.#keeps) return;
    try {
      await this.store.write('source', part, this.end);
      this.end += part.length;
    } catch (error) {
      this.#giveUp(error);
    }
  }

  #giveUp(error: unknown): void {
    if (!(error instanceof StorageFailure)) throw error;
    this.#keeps = false;
  }
}
