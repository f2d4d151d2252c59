import { LowbitError, abortError, errorData } from '../errors.js';
import { CHUNK_SIZE } from '../generated.js';
import type { LoadRequest } from '../protocol.js';
import type { LoadProgress, LoadWarning, ModelInfo } from '../types.js';
import { BlobSource, Download, UrlSource, type ByteSource } from './bytes.js';
import { PREFIX, chunksOf, sniff, type Chunks } from './header.js';
import { KeptSource } from './kept_source.js';
import { Keeper } from './keeper.js';
import { sha256 } from './sha256.js';
import { StorageFailure, Store, exclusively, type Begun, type State } from './store.js';
import { ArtifactMemory, GgufImport, GpuModel, destination, type Destination, type Target, type Wasm } from './wasm.js';

/** What a load tells on its way. */
export interface Reporter {
  progress: (progress: LoadProgress) => void;
  warning: (warning: LoadWarning) => void;
}

/** A model whose bytes are all where they belong. */
export interface Loaded {
  artifact: Destination;
  /** The whole file in bytes. */
  bytes: number;
  from: ModelInfo['from'];
  kept: boolean;
}

/** Bytes that are read from storage at a time: large reads are several times quicker than many small ones. */
const READ_SIZE = 64 << 20;

/** Errors that say of a file itself that it is no sound model: nothing of it is worth keeping. */
const UNSOUND = ['malformed-file', 'unsupported', 'unknown-architecture', 'missing-tensor', 'bad-shape', 'bad-config', 'bad-tokenizer'];

/** Waiting longer than this for a server's word on a kept model is not worth it. */
const PROBE_TIMEOUT_MS = 2000;

/** Brings the bytes of a model to the GPU, or into the engine's memory: from storage, the network or a file. */
export async function loadBytes(
  request: LoadRequest,
  wasm: Promise<Wasm>,
  report: Reporter,
  signal: AbortSignal,
  target: Target,
): Promise<Loaded> {
  // An engine that cannot start must not go unnoticed while bytes are awaited.
  wasm.catch(() => undefined);
  if ('blob' in request.source) {
    const source = new BlobSource(request.source.blob, request.source.name);
    return new Loader(source, wasm, report, signal, target).fetch(undefined, 'file');
  }
  const { url } = request.source;
  const source = new UrlSource(url, request.headers, request.stallTimeout);
  const loader = new Loader(source, wasm, report, signal, target);
  if (request.cache === false) return loader.fetch(undefined, 'network');
  const waiting = () => report.progress({ phase: 'waiting', loaded: 0, total: 0, resumed: 0 });
  return exclusively(url, signal, waiting, async () => {
    const store = await Store.open(url);
    if (!store) {
      report.warning({ code: 'storage-unavailable', message: 'this browser grants no storage; the model is not kept' });
      return loader.fetch(undefined, 'network');
    }
    try {
      return (await loader.kept(store, request)) ?? (await loader.fetch(store, 'network'));
    } catch (error) {
      if (UNSOUND.includes(errorData(error).code)) await store.clear();
      if (!(error instanceof StorageFailure)) throw error;
      report.warning(error.warning);
      return await loader.fetch(undefined, 'network');
    } finally {
      await store.end();
    }
  });
}

class Loader {
  readonly #throttle: Throttle;

  constructor(
    private readonly source: ByteSource,
    private readonly wasm: Promise<Wasm>,
    private readonly report: Reporter,
    private readonly signal: AbortSignal,
    private readonly target: Target,
  ) {
    this.#throttle = new Throttle(report);
  }

  /** The model from storage, if it is there whole and the server has no other version. */
  async kept(store: Store, request: LoadRequest): Promise<Loaded | undefined> {
    const state = await store.state();
    if (!state?.complete) return undefined;
    const asked = request.cache === 'only' ? undefined : this.#probe();
    const [header, wasm] = await Promise.all([store.header().catch(() => undefined), this.wasm]);
    if (!header) return undefined;
    const artifact = await destination(wasm, this.source.name, header, this.target);
    const sound = await this.#readAll(store, artifact, request.verify ? chunksOf(this.source.name, header) : undefined, header.length);
    const now = await asked;
    const changed = now !== undefined && (now.size !== state.sourceSize || now.version !== state.sourceVersion);
    if (!sound || changed) {
      artifact.free();
      await store.clear();
      return undefined;
    }
    return { artifact, bytes: state.bytes, from: 'cache', kept: true };
  }

  /** The model from its source; kept in `store` as it comes. */
  async fetch(store: Store | undefined, from: 'network' | 'file'): Promise<Loaded> {
    try {
      return await this.#fetch(store, from);
    } catch (error) {
      // The version that was begun is gone: nothing of it is of use.
      if (!(error instanceof LowbitError) || error.code !== 'file-changed' || !store) throw error;
      await store.clear();
      if (this.source instanceof UrlSource) this.source.expect(0, '');
      return this.#fetch(store, from);
    }
  }

  async #fetch(store: Store | undefined, from: 'network' | 'file'): Promise<Loaded> {
    const begun = await this.#begun(store);
    // Of a GGUF file the bytes are kept as they come, until all are there and packed.
    const kept = store && this.source instanceof UrlSource ? new KeptSource(this.source, store, begun?.received ?? 0) : undefined;
    const download = new Download(begun?.header ? this.source : (kept ?? this.source), this.signal, 0);
    try {
      const keeper = new Keeper(store, this.report.warning);
      if (begun?.header) return await this.#artifact(begun.header, download, keeper, begun.state.chunks, from);
      const prefix = await download.take(PREFIX);
      const sniffed = sniff(this.source.name, prefix);
      await kept?.decide(sniffed.kind === 'gguf');
      if (sniffed.kind === 'gguf') return await this.#gguf(prefix, download, keeper, from, begun?.received ?? 0);
      checkHeader(this.source, sniffed.dataOffset);
      const header = new Uint8Array(sniffed.dataOffset);
      header.set(prefix);
      await download.fill(header.subarray(PREFIX));
      return await this.#artifact(header, download, keeper, 0, from);
    } finally {
      await download.close();
    }
  }

  /** What an interrupted download has left; the source must be the same one still. */
  async #begun(store: Store | undefined): Promise<Begun | undefined> {
    const begun = await store?.begun();
    if (begun && this.source instanceof UrlSource) this.source.expect(begun.state.sourceSize, begun.state.sourceVersion);
    return begun;
  }

  /** Downloads an artifact chunk by chunk; the first `ready` are read from storage and verified again. */
  async #artifact(
    header: Uint8Array<ArrayBuffer>,
    download: Download,
    keeper: Keeper,
    ready: number,
    from: 'network' | 'file',
  ): Promise<Loaded> {
    const { name } = this.source;
    const chunks = chunksOf(name, header);
    const wasm = await this.wasm;
    const artifact = await destination(wasm, name, header, this.target);
    try {
      const total = header.length + artifact.dataLength;
      checkCount(name, chunks, artifact.dataLength);
      const state: State = {
        url: name,
        sourceSize: this.source.size || total,
        sourceVersion: this.source.version,
        chunks: ready,
        complete: false,
        bytes: total,
      };
      if (ready === 0) await keeper.begin(header, state, total);
      const first = ready > 0 ? await this.#resume(keeper, artifact, chunks, ready, header.length) : 0;
      await download.seek(header.length + first * chunks.size);
      await this.#receive(artifact, chunks, first, header.length, download, keeper, state);
      state.sourceVersion = this.source.version;
      state.complete = true;
      await keeper.save(state);
      return { artifact, bytes: total, from, kept: keeper.keeps };
    } catch (error) {
      artifact.free();
      throw error;
    }
  }

  /** Reads the chunks that are kept. Returns how many of them are sound. */
  async #resume(keeper: Keeper, artifact: Destination, chunks: Chunks, ready: number, headerBytes: number): Promise<number> {
    const buffer = new Uint8Array(chunks.size);
    for (let index = 0; index < ready; index++) {
      this.#check();
      const { offset, length } = span(chunks, index, artifact.dataLength);
      const bytes = buffer.subarray(0, length);
      if (!(await keeper.read(bytes, offset)) || (await sha256(bytes)) !== chunks.hashes[index]) return index;
      artifact.write(offset, bytes);
      const loaded = headerBytes + offset + length;
      this.#throttle.send({ phase: 'cache', loaded, total: headerBytes + artifact.dataLength, resumed: loaded });
    }
    return ready;
  }

  /** Receives the chunks from `first` on. One is verified and written while the next one arrives. */
  async #receive(
    artifact: Destination,
    chunks: Chunks,
    first: number,
    headerBytes: number,
    download: Download,
    keeper: Keeper,
    state: State,
  ): Promise<void> {
    const buffers = [new Uint8Array(chunks.size), new Uint8Array(chunks.size)];
    const resumed = first > 0 ? headerBytes + first * chunks.size : 0;
    const total = headerBytes + artifact.dataLength;
    let loaded = headerBytes + first * chunks.size;
    let accepted = Promise.resolve();
    try {
      for (let index = first; index < chunks.hashes.length; index++) {
        const { length } = span(chunks, index, artifact.dataLength);
        const bytes = (buffers[index % 2] as Uint8Array<ArrayBuffer>).subarray(0, length);
        await download.fill(bytes, (count) => {
          loaded += count;
          this.#throttle.send({ phase: 'download', loaded, total, resumed });
        });
        await accepted;
        accepted = this.#accept(artifact, chunks, index, bytes, headerBytes, keeper, { ...state, chunks: index + 1 });
        accepted.catch(() => undefined);
      }
    } finally {
      // Also when the connection is lost: the chunk before is whole and must not be lost with it.
      await accepted;
    }
    state.chunks = chunks.hashes.length;
  }

  /** Verifies a chunk, fetches it once more if it is damaged, and puts it in its place. */
  async #accept(
    artifact: Destination,
    chunks: Chunks,
    index: number,
    bytes: Uint8Array<ArrayBuffer>,
    headerBytes: number,
    keeper: Keeper,
    state: State,
  ): Promise<void> {
    const expected = chunks.hashes[index];
    const { offset } = span(chunks, index, artifact.dataLength);
    if ((await sha256(bytes)) !== expected) {
      const message = `${this.source.name}: chunk ${index} of ${chunks.hashes.length} arrived damaged and is fetched again`;
      this.report.warning({ code: 'chunk-refetched', message });
      const again = new Download(this.source, this.signal, headerBytes + offset);
      await again.fill(bytes).finally(() => again.close());
      const found = await sha256(bytes);
      if (found !== expected) throw damaged(this.source.name, index, found, expected);
    }
    this.#check();
    artifact.write(offset, bytes);
    await artifact.settled();
    state.sourceVersion = this.source.version;
    await keeper.write(bytes, offset, state);
  }

  /** Packs a GGUF file while it streams in; what is kept is the packed model. */
  async #gguf(
    prefix: Uint8Array<ArrayBuffer>,
    download: Download,
    keeper: Keeper,
    from: 'network' | 'file',
    resumed: number,
  ): Promise<Loaded> {
    const wasm = await this.wasm;
    const importer = await this.#packed(wasm, prefix, download, resumed);
    const packed = importer.packed();
    const chunks: string[] = [];
    for (let at = 0; at < packed.length; at += CHUNK_SIZE) {
      this.#check();
      chunks.push(await sha256(packed.slice(at, at + CHUNK_SIZE)));
    }
    const memory = ArtifactMemory.from(wasm, importer, chunks, this.target.options);
    await this.#keepAll(memory, keeper, chunks.length);
    const bytes = memory.header().length + memory.dataLength;
    const { gpu } = this.target;
    const artifact = gpu ? await GpuModel.from(wasm, this.source.name, memory, gpu, this.target) : memory;
    return { artifact, bytes, from, kept: keeper.keeps };
  }

  async #packed(wasm: Wasm, prefix: Uint8Array<ArrayBuffer>, download: Download, resumed: number): Promise<GgufImport> {
    const importer = new GgufImport(wasm, this.source.name, this.source.size);
    try {
      await this.#ggufHeader(importer, prefix, download);
      for (let next = importer.next(); next; next = importer.next()) {
        await download.seek(next.offset);
        importer.put(await download.take(next.length));
        const loaded = next.offset + next.length;
        this.#throttle.send({ phase: 'download', loaded, total: this.source.size || loaded, resumed });
      }
      return importer;
    } catch (error) {
      importer.free();
      throw error;
    }
  }

  /** Gives the importer the start of the file until its header is whole. */
  async #ggufHeader(importer: GgufImport, prefix: Uint8Array<ArrayBuffer>, download: Download): Promise<void> {
    let part = prefix;
    let end = prefix.length;
    for (let wanted = importer.header(part); wanted > 0; wanted = importer.header(part)) {
      part = await download.take(wanted);
      end += part.length;
    }
    // The last part reaches into the data.
    const data = importer.next()?.offset ?? end;
    if (data < end) download.unread(part.subarray(Math.max(0, part.length - (end - data))));
  }

  /** Keeps a model that is whole in memory. */
  async #keepAll(artifact: ArtifactMemory, keeper: Keeper, chunks: number): Promise<void> {
    const header = artifact.header();
    const state: State = {
      url: this.source.name,
      sourceSize: this.source.size,
      sourceVersion: this.source.version,
      chunks: 0,
      complete: false,
      bytes: header.length + artifact.dataLength,
    };
    await keeper.begin(header, state, state.bytes);
    for (let at = 0; at < artifact.dataLength && keeper.keeps; at += CHUNK_SIZE) {
      this.#check();
      await keeper.write(artifact.view(at, Math.min(CHUNK_SIZE, artifact.dataLength - at)), at, undefined);
    }
    await keeper.save({ ...state, chunks, complete: true });
  }

  async #readAll(store: Store, artifact: Destination, verify: Chunks | undefined, headerBytes: number): Promise<boolean> {
    const size = verify?.size ?? READ_SIZE;
    const total = headerBytes + artifact.dataLength;
    if ((await store.size('data')) < artifact.dataLength) return false;
    for (let offset = 0, index = 0; offset < artifact.dataLength; offset += size, index++) {
      this.#check();
      const view = artifact.view(offset, Math.min(size, artifact.dataLength - offset));
      if (!(await store.read('data', view, offset))) return false;
      if (verify && (await sha256(view.slice())) !== verify.hashes[index]) return false;
      artifact.filled(view);
      await artifact.settled();
      this.#throttle.send({ phase: 'cache', loaded: headerBytes + offset + view.length, total, resumed: 0 });
    }
    return true;
  }

  #probe(): Promise<{ size: number; version: string } | undefined> {
    const soon = AbortSignal.timeout(PROBE_TIMEOUT_MS);
    return this.source instanceof UrlSource ? this.source.probe(soon) : Promise.resolve(undefined);
  }

  #check(): void {
    if (this.signal.aborted) throw abortError(this.signal);
  }
}

/** Lets progress through some times a second, and always the last one of a phase. */
class Throttle {
  #last = 0;

  constructor(private readonly report: Reporter) {}

  send(progress: LoadProgress): void {
    const now = performance.now();
    if (now - this.#last < 40 && progress.loaded < progress.total) return;
    this.#last = now;
    this.report.progress(progress);
  }
}

/** Where chunk `index` lies in the data. */
function span(chunks: Chunks, index: number, dataLength: number): { offset: number; length: number } {
  const offset = index * chunks.size;
  return { offset, length: Math.min(chunks.size, dataLength - offset) };
}

function checkHeader({ name, size }: ByteSource, end: number): void {
  if (size > 0 && end > size) {
    throw new LowbitError('malformed-file', `${name}: header: reaches to byte ${end}, the file has ${size}; it is truncated, fetch it again`);
  }
}

function checkCount(name: string, chunks: Chunks, dataLength: number): void {
  const expected = Math.ceil(dataLength / chunks.size);
  if (chunks.hashes.length !== expected) {
    const found = chunks.hashes.length;
    throw new LowbitError('malformed-file', `${name}: chunks: ${found} hashes, expected ${expected} for ${dataLength} bytes`);
  }
}

function damaged(name: string, index: number, found: string, expected: string | undefined): LowbitError {
  return new LowbitError(
    'corrupt-data',
    `${name}: chunk ${index}: SHA-256 is ${found}, expected ${expected}, twice; the file on the server is damaged`,
  );
}
