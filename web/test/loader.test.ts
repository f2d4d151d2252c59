import { beforeEach, expect, test, vi } from 'vitest';
import type { LoadRequest } from '../src/protocol.js';
import type { LoadProgress, LoadWarning } from '../src/types.js';
import { loadBytes, type Loaded } from '../src/worker/loader.js';
import { forget } from '../src/worker/store.js';
import { CHUNK, FakeServer, FakeStorage, FakeWasm, makeArtifact, sha256Hex, type Faults } from './fake.js';

const TARGET = { gpu: undefined, options: '{}', mayRefuse: false };
const DATA = 5 * CHUNK + 1234;
/** So many times quicker than elsewhere. */
const HASTE = 1000;
const { file, data, dataOffset } = makeArtifact(DATA);

let storage: FakeStorage;
let server: FakeServer;
let warnings: LoadWarning[];
let progress: LoadProgress[];

beforeEach(() => {
  vi.unstubAllGlobals();
  storage = new FakeStorage();
  storage.install();
  warnings = [];
  progress = [];
  use();
  // Time runs quickly here.
  const { setTimeout } = globalThis;
  vi.stubGlobal('setTimeout', (work: () => void, ms: number) => setTimeout(work, ms / HASTE));
});

function use(faults: Faults = {}, content = file): void {
  server = new FakeServer(content, faults);
  vi.stubGlobal('fetch', server.fetch);
}

function request(changes: Partial<LoadRequest> = {}): LoadRequest {
  return {
    source: { url: 'https://models.test/tiny.lowbit' },
    wasmUrls: { base: '', relaxed: '', threads: '' },
    device: 'cpu',
    threads: 1,
    cache: true,
    verify: false,
    headers: {},
    stallTimeout: 10_000 * HASTE,
    ...changes,
  };
}

async function load(changes: Partial<LoadRequest> = {}, wasm = new FakeWasm(DATA)): Promise<Loaded> {
  const { signal } = new AbortController();
  const reporter = { progress: (p: LoadProgress) => void progress.push(p), warning: (w: LoadWarning) => void warnings.push(w) };
  return loadBytes(request(changes), wasm.asWasm, reporter, signal, TARGET);
}

function expectWhole(): void {
  expect(Buffer.compare(FakeWasm.last.data, data)).toBe(0);
}

test('a download arrives, is kept, and is read from storage the next time', async () => {
  expect(await load()).toMatchObject({ from: 'network', kept: true, bytes: file.length });
  expectWhole();
  expect(progress.at(-1)).toMatchObject({ phase: 'download', loaded: file.length, total: file.length });
  use();
  expect(await load()).toMatchObject({ from: 'cache', kept: true });
  expectWhole();
  expect(server.requests).toEqual([{ method: 'HEAD', range: null }]);
});

test('a kept model needs no server', async () => {
  await load();
  use({ status: 503 });
  expect(await load()).toMatchObject({ from: 'cache' });
  use();
  expect(await load({ cache: 'only' })).toMatchObject({ from: 'cache' });
  expect(server.requests).toEqual([]);
});

test('another version on the server is fetched', async () => {
  await load();
  use();
  server.etag = '"2"';
  expect(await load()).toMatchObject({ from: 'network' });
  expectWhole();
});

test('a lost connection is taken up where it broke', async () => {
  use({ cut: { at: dataOffset + 2 * CHUNK + 77, times: 3 } });
  expect(await load()).toMatchObject({ from: 'network' });
  expectWhole();
  expect(server.requests.length).toBe(4);
  expect(server.sent).toBeLessThan(file.length + 3 * 10_000);
});

test('a download that was given up goes on from the last good chunk', async () => {
  use({ cut: { at: dataOffset + 3 * CHUNK + 25_000, times: 100 } });
  await expect(load()).rejects.toMatchObject({ code: 'network' });
  expect(FakeWasm.last.freed).toBe(1);
  use();
  expect(await load()).toMatchObject({ from: 'network', kept: true });
  expectWhole();
  expect(server.requests[0]?.range).toBe(`bytes=${dataOffset + 3 * CHUNK}-`);
  expect(progress.at(-1)?.resumed).toBe(dataOffset + 3 * CHUNK);
});

test('a server that stalls is asked again for what is missing', async () => {
  const at = dataOffset + 2 * CHUNK + 77;
  for (const [stall, range] of [[at, /^bytes=1\d+-$/], [-1, null]] as const) {
    storage.files.clear();
    use({ stall: { at: stall, times: 1 } });
    expect(await load({ stallTimeout: 20 * HASTE })).toMatchObject({ from: 'network', kept: true });
    expectWhole();
    expect(server.requests.length).toBe(2);
    expect(server.requests[1]?.range).toEqual(range && expect.stringMatching(range));
    // Also the first of them: no connection is left open.
    expect(server.ended).toBe(2);
  }
});

test('a server that goes on to stall is an error that says so, and the next download goes on', async () => {
  use({ stall: { at: dataOffset + 2 * CHUNK + 25_000, times: 100 } });
  await expect(load({ stallTimeout: 20 * HASTE })).rejects.toMatchObject({
    code: 'network',
    message: expect.stringMatching(/^tiny\.lowbit: the server has sent nothing for 20 s after \d+ of \d+ bytes; load again/) as string,
  });
  expect(server.requests.length).toBe(4);
  expect(FakeWasm.last.freed).toBe(1);
  use();
  expect(await load()).toMatchObject({ from: 'network', kept: true });
  expectWhole();
  expect(server.requests[0]?.range).toBe(`bytes=${dataOffset + 2 * CHUNK}-`);
});

test('an abort ends a download that stalls at once', async () => {
  use({ stall: { at: dataOffset, times: 1 } });
  const abort = new AbortController();
  const loading = loadBytes(request(), new FakeWasm(DATA).asWasm, { progress: () => undefined, warning: () => undefined }, abort.signal, TARGET);
  setTimeout(() => abort.abort(), 10 * HASTE);
  await expect(loading).rejects.toMatchObject({ code: 'aborted' });
});

test('a kept chunk that has rotted is not resumed from', async () => {
  use({ cut: { at: dataOffset + 3 * CHUNK + 25_000, times: 100 } });
  await expect(load()).rejects.toMatchObject({ code: 'network' });
  const kept = [...storage.files.entries()].find(([path]) => path.endsWith('/data'))?.[1];
  kept![CHUNK + 9]! ^= 4;
  use();
  await load();
  expectWhole();
  expect(server.requests[0]?.range).toBe(`bytes=${dataOffset + CHUNK}-`);
});

test('a resumed download starts anew when the file on the server is another one', async () => {
  use({ cut: { at: dataOffset + 3 * CHUNK + 25_000, times: 100 } });
  await expect(load()).rejects.toMatchObject({ code: 'network' });
  use();
  server.etag = '"2"';
  await load();
  expectWhole();
  expect(server.requests.map((r) => r.range)).toEqual([`bytes=${dataOffset + 3 * CHUNK}-`, null]);
});

test('a damaged chunk is fetched once more', async () => {
  use({ flip: { at: dataOffset + 2 * CHUNK + 5, times: 1 } });
  await load();
  expectWhole();
  expect(warnings.map((w) => w.code)).toEqual(['chunk-refetched']);
});

test('a chunk that stays damaged is reported, and nothing of it is kept', async () => {
  use({ flip: { at: dataOffset + 2 * CHUNK + 5, times: 100 } });
  await expect(load()).rejects.toMatchObject({ code: 'corrupt-data', message: expect.stringContaining('chunk 2') as string });
  use();
  await load();
  expectWhole();
  expect(server.requests[0]?.range).toBe(`bytes=${dataOffset + 2 * CHUNK}-`);
});

test('a server without ranges is read from the start', async () => {
  use({ noRange: true, cut: { at: dataOffset + 2 * CHUNK, times: 1 }, flip: { at: dataOffset + 4 * CHUNK, times: 1 } });
  await load();
  expectWhole();
});

test('without enough storage the model runs from memory', async () => {
  storage.quota = file.length / 2;
  expect(await load()).toMatchObject({ from: 'network', kept: false });
  expectWhole();
  expect(warnings.map((w) => w.code)).toEqual(['storage-quota']);
  expect([...storage.files.keys()]).toEqual([]);
});

test('storage that turns out to be full does not end the download', async () => {
  const free = Infinity;
  storage.install();
  Object.assign(navigator.storage, { estimate: () => Promise.resolve({ quota: free, usage: 0 }) });
  storage.quota = file.length / 2;
  expect(await load()).toMatchObject({ kept: false });
  expectWhole();
  expect(warnings.map((w) => w.code)).toEqual(['storage-quota']);
});

test('a storage that breaks does not end the loading', async () => {
  for (const broken of ['read', 'getSize', 'write', 'flush'] as const) {
    // The first two matter when a model is kept, the others when it is to be kept.
    if (broken === 'read' || broken === 'getSize') await load();
    else storage.files.clear();
    warnings = [];
    storage.broken = broken;
    use();
    expect(await load(), broken).toMatchObject({ from: 'network', kept: false });
    expectWhole();
    expect(warnings.map((w) => w.code), broken).toEqual(['storage-unavailable']);
    storage.broken = undefined;
    use();
    expect(await load(), broken).toMatchObject({ kept: true });
  }
});

test('a server that sends other bytes than asked for is not believed', async () => {
  use({ cut: { at: dataOffset + CHUNK, times: 1 }, shift: 1000 });
  await expect(load()).rejects.toMatchObject({ code: 'network', message: expect.stringContaining('when asked for') as string });
});

test('a file of the user that goes away is said to be gone', async () => {
  const blob = new Blob([file]);
  const fail = () => new ReadableStream({ pull: (controller) => controller.error(new DOMException('gone', 'NotReadableError')) });
  Object.assign(blob, { slice: () => ({ stream: fail }) });
  await expect(load({ source: { blob, name: 'mine.lowbit' } })).rejects.toMatchObject({
    code: 'file-changed',
    message: expect.stringMatching(/mine\.lowbit: .*choose it again/) as string,
  });
});

test('an abort ends the download, and the next one goes on', async () => {
  const abort = new AbortController();
  const loading = loadBytes(
    request(),
    new FakeWasm(DATA).asWasm,
    { progress: ({ loaded }) => loaded > dataOffset + 2 * CHUNK && abort.abort(), warning: () => undefined },
    abort.signal,
    TARGET,
  );
  await expect(loading).rejects.toMatchObject({ code: 'aborted' });
  use();
  await load();
  expectWhole();
  expect(server.requests[0]?.range).toMatch(/^bytes=\d+-$/);
});

test('a load that brought nothing of use leaves nothing behind', async () => {
  const folders = () => [...storage.folders].filter((folder) => folder !== '/lowbit');
  const page = new TextEncoder().encode('<!doctype html><p>Not here</p>');
  const gguf = new Uint8Array(900_000);
  gguf.set(new TextEncoder().encode('GGUF'));
  const failures: [faults: Faults, content?: Uint8Array<ArrayBuffer>][] = [
    [{ status: 404 }],
    [{ cut: { at: 0, times: 100 } }],
    [{ cut: { at: dataOffset + 25_000, times: 100 } }],
    [{}, page],
    [{}, file.slice(0, -100)],
    [{}, gguf.slice(0, 200_000)],
  ];
  for (const [faults, content] of failures) {
    use(faults, content);
    await expect(load({}, new FakeWasm(DATA, { header: 130_000, steps: [[130_016, 300_000]] }))).rejects.toThrow();
    expect(folders(), JSON.stringify(faults)).toEqual([]);
    expect(await forget()).toBe(0);
  }
  const abort = new AbortController();
  const reporter = { progress: () => undefined, warning: () => undefined };
  use({ stall: { at: 0, times: 1 } });
  const loading = loadBytes(request(), new FakeWasm(DATA).asWasm, reporter, abort.signal, TARGET);
  setTimeout(() => abort.abort());
  await expect(loading).rejects.toMatchObject({ code: 'aborted' });
  expect(folders()).toEqual([]);
});

test('models are forgotten and counted, whole or begun; a folder without one is only removed', async () => {
  await load();
  use({ cut: { at: dataOffset + 3 * CHUNK, times: 100 } });
  await expect(load({ source: { url: 'https://models.test/other.lowbit' } })).rejects.toMatchObject({ code: 'network' });
  storage.folders.add('/lowbit/left-by-a-tab-that-was-closed');
  expect(await forget('https://models.test/none.lowbit')).toBe(0);
  expect(await forget()).toBe(2);
  expect([...storage.folders]).toEqual(['/lowbit']);
  expect(storage.files.size).toBe(0);
});

test('a missing file is said to be missing', async () => {
  use({ status: 404 });
  await expect(load()).rejects.toMatchObject({ code: 'not-found' });
  expect(server.requests.length).toBe(1);
});

test('a truncated file is told from a lost connection', async () => {
  use({}, file.slice(0, -100));
  await expect(load()).rejects.toMatchObject({ code: 'malformed-file' });
});

test('a file of the user is read without touching the storage', async () => {
  const source = { blob: new Blob([file]), name: 'mine.lowbit' };
  expect(await load({ source })).toMatchObject({ from: 'file', kept: false });
  expectWhole();
  expect(server.requests).toEqual([]);
  expect(storage.files.size).toBe(0);
});

test('a header that is longer than the file is refused at once', async () => {
  await expect(load({ source: { blob: new Blob([file.slice(0, 100)]), name: 'cut.lowbit' } })).rejects.toMatchObject({
    code: 'malformed-file',
    message: expect.stringMatching(/cut\.lowbit: header: reaches to byte \d+, the file has 100/) as string,
  });
  await expect(load({ source: { blob: new Blob([]), name: 'empty.lowbit' } })).rejects.toMatchObject({
    code: 'malformed-file',
    message: expect.stringContaining('empty.lowbit: ends after 0 bytes') as string,
  });
});

test('other files are refused by their first bytes', async () => {
  use({}, new TextEncoder().encode('<!doctype html><p>Not here</p>'));
  await expect(load()).rejects.toMatchObject({ code: 'malformed-file', message: expect.stringMatching(/3c21646f.*web page/) as string });
});

test('a GGUF file is packed while it streams in, in one request, and what is kept is the packed model', async () => {
  const gguf = new Uint8Array(900_000).map((_, i) => (i * 31) >> 5);
  gguf.set(new TextEncoder().encode('GGUF'));
  const steps: [number, number][] = [[130_016, 300_000], [430_016, 8], [500_000, 400_000]];
  const expected = Buffer.concat(steps.map(([offset, length]) => gguf.subarray(offset, offset + length)));
  const wasm = () => new FakeWasm(expected.length, { header: 130_000, steps });
  use({ cut: { at: 600_000, times: 1 } }, gguf);
  expect(await load({}, wasm())).toMatchObject({ from: 'network', kept: true });
  expect(Buffer.compare(FakeWasm.last.data, expected)).toBe(0);
  expect(FakeWasm.last.chunks).toEqual([sha256Hex(expected)]);
  expect(server.requests.length).toBe(2);
  use({}, gguf);
  expect(await load({}, wasm())).toMatchObject({ from: 'cache' });
  expect(Buffer.compare(FakeWasm.last.data, expected)).toBe(0);
});

test('an interrupted download of a GGUF file goes on where it broke', async () => {
  const gguf = new Uint8Array(900_000).map((_, i) => (i * 31) >> 5);
  gguf.set(new TextEncoder().encode('GGUF'));
  const steps: [number, number][] = [[130_016, 300_000], [430_016, 469_984]];
  const wasm = () => new FakeWasm(769_984, { header: 130_000, steps });
  use({ cut: { at: 600_000, times: 100 } }, gguf);
  await expect(load({}, wasm())).rejects.toMatchObject({ code: 'network' });
  expect(FakeWasm.last.freed).toBe(1);
  use({}, gguf);
  expect(await load({}, wasm())).toMatchObject({ from: 'network', kept: true });
  expect(Buffer.compare(FakeWasm.last.data, gguf.subarray(130_016))).toBe(0);
  const from = Number(/\d+/.exec(server.requests[0]?.range ?? '')?.[0]);
  expect(from).toBeGreaterThan(500_000);
  expect(server.requests.length).toBe(1);
  expect([...storage.files.keys()].some((path) => path.endsWith('/source'))).toBe(false);
  // Another version on the server: nothing of the old one is used.
  use({ cut: { at: 600_000, times: 100 } }, gguf);
  server.etag = '"2"';
  await expect(load({}, wasm())).rejects.toMatchObject({ code: 'network' });
  use({}, gguf);
  server.etag = '"3"';
  expect(await load({}, wasm())).toMatchObject({ from: 'network' });
  expect(Buffer.compare(FakeWasm.last.data, gguf.subarray(130_016))).toBe(0);
  expect(server.requests.map((r) => r.range === null)).toEqual([false, true]);
});
