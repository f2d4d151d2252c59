import { LowbitError, abortError } from '../errors.js';

/** A file that can be read from any position on. */
export interface ByteSource {
  readonly name: string;
  /** Total size in bytes; 0 before the first {@link open}, or when the server does not say. */
  readonly size: number;
  /** What changes when the file does, as far as the server says. */
  readonly version: string;
  /** Milliseconds without a byte after which the source counts as stalled; `undefined` when it may take its time. */
  readonly patience: number | undefined;
  /** Begins to read at `offset`. A body that ends early is the caller's to notice. */
  open(offset: number, signal: AbortSignal): Promise<Reader>;
}

/** Gives bytes in turn. */
export type Reader = Pick<ReadableStreamDefaultReader<Uint8Array>, 'read' | 'cancel'>;

/** A file that the user chose. */
export class BlobSource implements ByteSource {
  readonly version = '';
  readonly patience = undefined;
  readonly size: number;

  constructor(
    private readonly blob: Blob,
    readonly name: string,
  ) {
    this.size = blob.size;
  }

  open(offset: number): Promise<Reader> {
    const reader = this.blob.slice(offset).stream().getReader();
    const gone = (cause: unknown): never => {
      const message = `${this.name}: the file can no longer be read (${String(cause)}); choose it again`;
      throw new LowbitError('file-changed', message, { cause });
    };
    return Promise.resolve({ read: () => reader.read().catch(gone), cancel: (reason) => reader.cancel(reason) });
  }
}

/** A file on a server, read by range requests where the server allows them. */
export class UrlSource implements ByteSource {
  readonly name: string;
  size = 0;
  version = '';

  constructor(
    private readonly url: string,
    private readonly headers: Record<string, string>,
    readonly patience: number,
  ) {
    this.name = decodeURIComponent(new URL(url).pathname.split('/').pop() || url);
  }

  async open(offset: number, signal: AbortSignal): Promise<Reader> {
    const headers = { ...this.headers, ...(offset > 0 && { Range: `bytes=${offset}-` }) };
    const response = await request(this.url, { headers, signal });
    if (response.status !== 200 && response.status !== 206) throw refused(this.url, response.status);
    this.#identify(response, offset);
    const first = response.status === 206 ? firstByte(response) : undefined;
    if (first !== undefined && first !== offset) {
      throw new LowbitError('network', `${this.url}: the server sent bytes from ${first} on when asked for those from ${offset} on`);
    }
    if (!response.body) throw new LowbitError('network', `${this.url}: the response has no body`);
    const reader = response.body.getReader();
    // A server without ranges sends the file from its start.
    return response.status === 206 || offset === 0 ? reader : skip(reader, offset);
  }

  /** What the file was when its download began; {@link open} fails when it is another one now. */
  expect(size: number, version: string): void {
    this.size = size;
    this.version = version;
  }

  /** Asks for size and version only; `undefined` when the server cannot be reached or does not say. */
  async probe(signal: AbortSignal): Promise<{ size: number; version: string } | undefined> {
    try {
      const response = await fetch(this.url, { method: 'HEAD', headers: this.headers, signal });
      return response.ok ? { size: totalSize(response, 0), version: versionOf(response) } : undefined;
    } catch {
      return undefined;
    }
  }

  #identify(response: Response, offset: number): void {
    const size = totalSize(response, offset);
    const version = versionOf(response);
    const changed = (size > 0 && this.size > 0 && size !== this.size) || version !== (this.version || version);
    if (changed) {
      throw new LowbitError('file-changed', `${this.url}: the file changed on the server during the download; load it again`);
    }
    this.size ||= size;
    this.version ||= version;
  }
}

async function request(url: string, init: RequestInit & { signal: AbortSignal }): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (cause) {
    if (init.signal.aborted) throw abortError(init.signal);
    throw new LowbitError('network', `${url}: cannot be fetched (offline, or refused by CORS)`, { cause });
  }
}

function refused(url: string, status: number): LowbitError {
  const gone = status === 404 || status === 410;
  return new LowbitError(gone ? 'not-found' : 'network', `${url}: the server answered ${status}`);
}

/** Size of the whole file; 0 when the server does not say. */
function totalSize(response: Response, offset: number): number {
  const range = /\/(\d+)$/.exec(response.headers.get('Content-Range') ?? '');
  if (range) return Number(range[1]);
  // The length of a compressed body is not that of the file.
  const length = response.headers.has('Content-Encoding') ? 0 : Number(response.headers.get('Content-Length') ?? 0);
  return response.status === 206 && length > 0 ? offset + length : length;
}

/** Where a part begins, if the server says so. */
function firstByte(response: Response): number | undefined {
  const range = /^bytes (\d+)-/.exec(response.headers.get('Content-Range') ?? '');
  return range ? Number(range[1]) : undefined;
}

function versionOf(response: Response): string {
  return response.headers.get('ETag') ?? response.headers.get('Last-Modified') ?? '';
}

/** Drops the first `count` bytes of a body. */
async function skip(reader: Reader, count: number): Promise<Reader> {
  let left = count;
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return controller.close();
        const rest = value.subarray(Math.min(left, value.length));
        left -= value.length - rest.length;
        if (rest.length > 0) return controller.enqueue(rest);
      }
    },
    cancel: (reason) => reader.cancel(reason),
  }).getReader();
}

/** Longer gaps are jumped over with another request. */
const READ_AHEAD = 1 << 20;

/** Waits between tries, in milliseconds; a try that got any byte starts over. */
const PAUSES = [250, 1000, 4000];

/** Reads a source from a position to its end, and goes on after a connection that was lost or has stalled. */
export class Download {
  #reader: Reader | undefined;
  /** Ends the request that {@link #reader} belongs to. */
  #request = new AbortController();
  #rest: Uint8Array = new Uint8Array(0);
  #failures = 0;

  constructor(
    readonly source: ByteSource,
    private readonly signal: AbortSignal,
    private position = 0,
  ) {}

  /** Fills `target` with the next bytes. */
  async fill(target: Uint8Array, onBytes?: (count: number) => void): Promise<void> {
    let filled = 0;
    while (filled < target.length) {
      const part = await this.#next();
      const taken = part.subarray(0, target.length - filled);
      target.set(taken, filled);
      filled += taken.length;
      this.position += taken.length;
      this.#rest = part.subarray(taken.length);
      onBytes?.(taken.length);
    }
  }

  /** The next `count` bytes. */
  async take(count: number): Promise<Uint8Array<ArrayBuffer>> {
    const bytes = new Uint8Array(count);
    await this.fill(bytes);
    return bytes;
  }

  /** Gives back the last bytes that were taken: they will be taken again. */
  unread(bytes: Uint8Array): void {
    const rest = new Uint8Array(bytes.length + this.#rest.length);
    rest.set(bytes);
    rest.set(this.#rest, bytes.length);
    this.#rest = rest;
    this.position -= bytes.length;
  }

  /** Goes on at another position. */
  async seek(position: number): Promise<void> {
    const connected = this.#reader !== undefined || this.#rest.length > 0;
    if (!connected || position < this.position || position > this.position + READ_AHEAD) {
      await this.close();
      this.position = position;
    }
    // A short gap is read over: that is quicker than another request.
    while (this.position < position) {
      const part = await this.#next();
      const taken = Math.min(part.length, position - this.position);
      this.#rest = part.subarray(taken);
      this.position += taken;
    }
  }

  async close(): Promise<void> {
    const reader = this.#reader;
    this.#reader = undefined;
    this.#rest = new Uint8Array(0);
    await reader?.cancel().catch(() => undefined);
    // Also one that has given no reader yet.
    this.#request.abort();
  }

  /** Some bytes at the current position. */
  async #next(): Promise<Uint8Array> {
    if (this.#rest.length > 0) return this.#rest;
    for (;;) {
      if (this.signal.aborted) throw abortError(this.signal);
      try {
        this.#reader ??= await this.#inTime(this.#open());
        const { done, value } = await this.#inTime(this.#reader.read());
        if (value?.length) {
          this.#failures = 0;
          return value;
        }
        if (done) throw this.#ended();
      } catch (error) {
        await this.#retry(error);
      }
    }
  }

  #open(): Promise<Reader> {
    const request = (this.#request = new AbortController());
    const { signal } = request;
    this.signal.addEventListener('abort', () => request.abort(this.signal.reason), { once: true, signal });
    return this.source.open(this.position, signal);
  }

  /** Waits for the source, but not longer than it may take. */
  async #inTime<T>(answer: Promise<T>): Promise<T> {
    const { patience } = this.source;
    if (patience === undefined) return answer;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(stalled(this.source, this.position, patience)), patience);
    });
    return Promise.race([answer, late]).finally(() => clearTimeout(timer));
  }

  #ended(): LowbitError {
    const { name, size } = this.source;
    if (this.position < size) return lost(this.source, this.position);
    return new LowbitError('malformed-file', `${name}: ends after ${this.position} bytes, but its header promises more`);
  }

  /** Pauses before the next try, or rethrows what no further try can mend. */
  async #retry(error: unknown): Promise<void> {
    await this.close();
    if (this.signal.aborted) throw abortError(this.signal);
    const known = error instanceof LowbitError ? error : lost(this.source, this.position, error);
    const pause = PAUSES[this.#failures++];
    if (known.code !== 'network' || pause === undefined) throw known;
    await sleep(pause, this.signal);
  }
}

function lost(source: ByteSource, position: number, cause?: unknown): LowbitError {
  return interrupted('the connection was lost', source, position, cause);
}

function stalled(source: ByteSource, position: number, patience: number): LowbitError {
  return interrupted(`the server has sent nothing for ${patience / 1000} s`, source, position);
}

function interrupted(what: string, { name, size }: ByteSource, position: number, cause?: unknown): LowbitError {
  const of = size > 0 ? ` of ${size}` : '';
  return new LowbitError('network', `${name}: ${what} after ${position}${of} bytes; load again to go on from there`, { cause });
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}
