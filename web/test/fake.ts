/** What the tests of the downloader need: a server with faults, a file system in memory, an engine that only holds bytes. */

import { createHash } from 'node:crypto';
import type { Wasm } from '../src/worker/wasm.js';

export const CHUNK = 1 << 16;

export function sha256Hex(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** An artifact of random bytes in chunks of {@link CHUNK}; the engine would refuse it, the downloader does not care. */
export function makeArtifact(dataLength: number): { file: Uint8Array<ArrayBuffer>; data: Uint8Array; dataOffset: number } {
  const data = new Uint8Array(dataLength);
  let state = 1;
  for (let i = 0; i < dataLength; i++) data[i] = (state = (state * 1103515245 + 12345) & 0x7fffffff) >> 16;
  const chunks: string[] = [];
  for (let at = 0; at < dataLength; at += CHUNK) chunks.push(sha256Hex(data.subarray(at, at + CHUNK)));
  const manifest = JSON.stringify({ chunk_size: CHUNK, chunks });
  const json = JSON.stringify({ __metadata__: { lowbit: manifest } });
  const padded = new TextEncoder().encode(json.padEnd(Math.ceil((json.length + 8) / 256) * 256 - 8, ' '));
  const file = new Uint8Array(8 + padded.length + dataLength);
  new DataView(file.buffer).setBigUint64(0, BigInt(padded.length), true);
  file.set(padded, 8);
  file.set(data, 8 + padded.length);
  return { file, data, dataOffset: 8 + padded.length };
}

/** What a {@link FakeServer} does wrong. */
export interface Faults {
  /** Cuts the connection at this position of the file; once, or every time. */
  cut?: { at: number; times: number };
  /** Flips a bit at this position; once, or every time. */
  flip?: { at: number; times: number };
  /** Ignores `Range`. */
  noRange?: boolean;
  /** Sends nothing more from this position on, nor ends; once, or every time. Before 0 are the headers. */
  stall?: { at: number; times: number };
  /** Sends parts that begin this much too early, and says so. */
  shift?: number;
  status?: number;
}

/** Stands in for `fetch`. */
export class FakeServer {
  requests: { method: string; range: string | null }[] = [];
  etag = '"1"';
  /** Requests that were ended by the client before the server was done. */
  ended = 0;
  /** Bytes that were sent. */
  sent = 0;

  constructor(
    public file: Uint8Array<ArrayBuffer>,
    public faults: Faults = {},
  ) {}

  readonly fetch = (_url: unknown, init: RequestInit = {}): Promise<Response> => {
    const range = new Headers(init.headers).get('Range');
    const method = init.method ?? 'GET';
    this.requests.push({ method, range });
    const { status, noRange, stall } = this.faults;
    const aborted = new Promise<never>((_, reject) => init.signal?.addEventListener('abort', () => reject(init.signal?.reason)));
    aborted.catch(() => this.ended++);
    if (stall && stall.at < 0 && stall.times-- > 0) return aborted;
    if (status !== undefined) return Promise.resolve(new Response(null, { status }));
    const headers = { ETag: this.etag, 'Content-Length': String(this.file.length) };
    if (method === 'HEAD') return Promise.resolve(new Response(null, { headers }));
    const asked = Number(/bytes=(\d+)-/.exec(range ?? '')?.[1] ?? 0);
    const start = noRange ? 0 : Math.max(0, asked - (this.faults.shift ?? 0));
    const partial = range !== null && !noRange;
    const extra = partial
      ? { 'Content-Range': `bytes ${start}-${this.file.length - 1}/${this.file.length}`, 'Content-Length': String(this.file.length - start) }
      : {};
    return Promise.resolve(new Response(this.#body(start, aborted), { status: partial ? 206 : 200, headers: { ...headers, ...extra } }));
  };

  #body(start: number, aborted: Promise<never>): ReadableStream<Uint8Array<ArrayBuffer>> {
    let at = start;
    return new ReadableStream({
      pull: (controller) => {
        const { cut, flip, stall } = this.faults;
        const end = Math.min(at + 10_000, this.file.length);
        if (strikes(stall, at, end)) return aborted;
        if (strikes(cut, at, end)) return controller.error(new TypeError('connection reset'));
        const part = this.file.slice(at, end);
        if (strikes(flip, at, end)) part[flip.at - at]! ^= 1;
        this.sent += part.length;
        at = end;
        controller.enqueue(part);
        if (at === this.file.length) controller.close();
      },
    });
  }
}

/** Whether a fault is due in the bytes from `at` to `end`; counts it. */
function strikes<T extends { at: number; times: number }>(fault: T | undefined, at: number, end: number): fault is T {
  return fault !== undefined && at <= fault.at && fault.at < end && fault.times > 0 && fault.times-- > 0;
}

/** How {@link FakeWasm} takes a GGUF file: its header ends at `header`, its steps read these parts. */
export interface FakeGguf {
  header: number;
  steps: [offset: number, length: number][];
}

/** An engine that holds the bytes of one artifact. A GGUF file is "packed" by putting its steps one after the other. */
export class FakeWasm {
  static last: FakeWasm;
  data = new Uint8Array(0);
  freed = 0;
  chunks: string[] = [];
  readonly #data: (header: Uint8Array) => number;

  constructor(
    dataLength: number,
    private readonly gguf: FakeGguf = { header: 0, steps: [] },
  ) {
    this.#data = () => dataLength;
    FakeWasm.last = this;
  }

  free(object: { free(): void }): void {
    object.free();
  }

  call<T>(work: (glue: unknown) => T): T {
    const fake = this;
    return work({
      Artifact: class {
        readonly dataLength: number;
        constructor(_name: string, header: Uint8Array) {
          this.dataLength = fake.#data(header);
          fake.data = new Uint8Array(this.dataLength);
        }
        pointer(): number {
          return 0;
        }
        free(): void {
          fake.freed++;
        }
        header(): Uint8Array<ArrayBuffer> {
          return makeArtifact(0).file;
        }
      },
      GgufImport: fake.#importer(),
    });
  }

  #importer(): unknown {
    const fake = this;
    const { header, steps } = this.gguf;
    return class {
      have = 0;
      step = 0;
      filled = 0;
      header(part: Uint8Array): number {
        this.have += part.length;
        if (this.have < header) return Math.min(2 * this.have, 100_000);
        fake.data = new Uint8Array(steps.reduce((sum, [, length]) => sum + length, 0));
        return 0;
      }
      next(): [number, number] | undefined {
        return steps[this.step];
      }
      put(bytes: Uint8Array): void {
        fake.data.set(bytes, this.filled);
        this.filled += bytes.length;
        this.step++;
      }
      packed(): [number, number] {
        return [0, fake.data.length];
      }
      finish(chunks: string[]): unknown {
        fake.chunks = chunks;
        return { dataLength: fake.data.length, pointer: () => 0, header: () => makeArtifact(0).file };
      }
      free(): void {
        fake.freed++;
      }
    };
  }

  view(pointer: number, length: number): Uint8Array {
    return this.data.subarray(pointer, pointer + length);
  }

  get asWasm(): Promise<Wasm> {
    return Promise.resolve(this as unknown as Wasm);
  }
}

/** The origin-private file system, in memory. Throws when `quota` bytes are exceeded, and from a `broken` method. */
export class FakeStorage {
  files = new Map<string, Uint8Array>();
  folders = new Set<string>();
  quota = Infinity;
  broken: 'read' | 'write' | 'getSize' | 'flush' | undefined;

  install(): void {
    const storage = {
      getDirectory: () => Promise.resolve(this.#directory('')),
      estimate: () => Promise.resolve({ quota: this.quota, usage: this.#usage() }),
    };
    Object.defineProperty(globalThis, 'navigator', { value: { storage }, configurable: true });
  }

  #usage(): number {
    return [...this.files.values()].reduce((sum, file) => sum + file.length, 0);
  }

  #directory(path: string): unknown {
    return {
      getDirectoryHandle: (name: string, options?: { create?: boolean }) => {
        const folder = `${path}/${name}`;
        if (options?.create) this.folders.add(folder);
        return this.folders.has(folder) ? Promise.resolve(this.#directory(folder)) : none();
      },
      getFileHandle: (name: string, options?: { create?: boolean }) => this.#file(`${path}/${name}`, options?.create),
      removeEntry: (name: string, options?: { recursive?: boolean }) => {
        const entry = `${path}/${name}`;
        if (this.files.delete(entry)) return Promise.resolve();
        const inside = [...this.files.keys()].filter((key) => key.startsWith(`${entry}/`));
        if (inside.length > 0 && !options?.recursive) return Promise.reject(new DOMException('full', 'InvalidModificationError'));
        for (const key of inside) this.files.delete(key);
        return this.folders.delete(entry) ? Promise.resolve() : none();
      },
      keys: () => this.#entries(path),
    };
  }

  async *#entries(path: string): AsyncGenerator<string> {
    for (const entry of [...this.folders, ...this.files.keys()]) {
      const name = entry.slice(path.length + 1);
      if (entry.startsWith(`${path}/`) && !name.includes('/')) yield name;
    }
  }

  #file(path: string, create = false): Promise<unknown> {
    if (!this.files.has(path)) {
      if (!create) return none();
      this.files.set(path, new Uint8Array(0));
    }
    const content = () => this.files.get(path) ?? new Uint8Array(0);
    return Promise.resolve({
      getFile: () => Promise.resolve(new Blob([content() as Uint8Array<ArrayBuffer>])),
      createSyncAccessHandle: () => Promise.resolve(this.#handle(path, content)),
    });
  }

  #handle(path: string, content: () => Uint8Array): unknown {
    const handle = {
      getSize: () => content().length,
      read: (target: Uint8Array, { at }: { at: number }) => {
        const part = content().subarray(at, at + target.length);
        target.set(part);
        return part.length;
      },
      write: (bytes: Uint8Array, { at }: { at: number }) => {
        const grown = new Uint8Array(Math.max(content().length, at + bytes.length));
        if (this.#usage() + grown.length - content().length > this.quota) throw new DOMException('full', 'QuotaExceededError');
        grown.set(content());
        grown.set(bytes, at);
        this.files.set(path, grown);
        return bytes.length;
      },
      truncate: (size: number) => this.files.set(path, content().slice(0, size)),
      flush: () => undefined,
      close: () => undefined,
    };
    const fail = () => {
      throw new DOMException('broken', 'InvalidStateError');
    };
    return { ...handle, ...(this.broken && { [this.broken]: fail }) };
  }
}

function none(): Promise<never> {
  return Promise.reject(new DOMException('none', 'NotFoundError'));
}
