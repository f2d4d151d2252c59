// Loading a model over a network, and into a storage, that fail.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import fs from 'node:fs';
import path from 'node:path';
import { tiny } from './support/models.mjs';
import { TINY } from './support/paths.mjs';
import { start } from './support/suite.mjs';

const CHUNK = 8 << 20;
const files = tiny();
const size = fs.statSync(files.chunks).size;
const dataOffset = 8 + Number(fs.readFileSync(files.chunks).readBigUInt64LE());
const url = '/models/chunks.lowbit';
const options = { threads: 1, context: 64 };

let suite;
let page;
before(async () => {
  assert.ok(size > dataOffset + 3 * CHUNK, 'the model has at least four chunks');
  suite = await start({ '/models/': TINY });
  page = await suite.open();
});
after(() => suite.stop());

/** Loads in a fresh state of the storage unless told otherwise. */
async function load(fault, { keep = false, ...more } = {}) {
  if (!keep) await page.evaluate(() => window.lowbit.forgetModels());
  suite.server.faults.set(url, fault ?? {});
  suite.server.requests.length = 0;
  return page.evaluate(([u, o]) => window.load(u, o), [url, { ...options, ...more }]);
}

const ranges = () => suite.server.requests.filter((r) => r.url === url && r.method === 'GET').map((r) => r.range);

test('a model is downloaded once and then read from storage', async () => {
  const first = await load();
  assert.equal(first.info?.from, 'network', JSON.stringify(first));
  assert.equal(first.info.kept, true);
  assert.equal(first.info.bytes, size);
  assert.deepEqual(ranges(), [undefined]);
  const second = await load(undefined, { keep: true });
  assert.equal(second.info.from, 'cache');
  assert.equal(second.info.fingerprint, first.info.fingerprint);
  assert.deepEqual(ranges(), []);
  await page.reload();
  await page.waitForFunction('window.ready');
  const third = await load({ status: 503 }, { keep: true, verify: true });
  assert.equal(third.info.from, 'cache', 'also when the server is gone');
});

test('an interrupted download goes on from the last good chunk, also after a reload of the page', async () => {
  const cut = { at: dataOffset + 2 * CHUNK + (1 << 20), times: 100 };
  // Slowly: a stream that breaks off loses what the page has not read yet.
  const first = await load({ cut, pause: 2 });
  assert.equal(first.error?.code, 'network', JSON.stringify(first));
  await page.reload();
  await page.waitForFunction('window.ready');
  const second = await load(undefined, { keep: true });
  assert.equal(second.info?.from, 'network', JSON.stringify(second));
  assert.equal(second.resumed, dataOffset + 2 * CHUNK);
  assert.deepEqual(ranges(), [`bytes=${dataOffset + 2 * CHUNK}-`]);
});

test('a connection that is lost once is taken up without a word', async () => {
  const { info, warnings } = await load({ cut: { at: dataOffset + CHUNK + (1 << 20), times: 1 } });
  assert.equal(info?.from, 'network');
  assert.deepEqual(warnings, []);
  assert.equal(ranges().length, 2);
});

test('a server that stalls is asked again for what is missing, and then is an error that says so', async () => {
  const at = dataOffset + 2 * CHUNK + (1 << 20);
  const first = await load({ stall: { at, times: 1 } }, { stallTimeout: 500 });
  assert.equal(first.info?.from, 'network', JSON.stringify(first));
  assert.equal(ranges().length, 2);
  assert.match(ranges()[1], /^bytes=\d+-$/);
  const second = await load({ stall: { at, times: 100 } }, { stallTimeout: 500 });
  assert.equal(second.error?.code, 'network', JSON.stringify(second));
  assert.match(second.error.message, /chunks\.lowbit: the server has sent nothing for 0\.5 s after \d+ of \d+ bytes/);
  const third = await load(undefined, { keep: true });
  assert.equal(third.resumed, dataOffset + 2 * CHUNK);
});

test('a load that brought nothing leaves nothing that is counted as a model', async () => {
  const forget = () => page.evaluate(() => window.lowbit.forgetModels());
  await load({ status: 404 });
  assert.equal(await forget(), 0);
  await load({ cut: { at: 0, times: 100 } });
  assert.equal(await forget(), 0);
  await load();
  await page.evaluate(() => window.model.dispose());
  assert.equal(await forget(), 1);
  assert.equal(await forget(), 0);
});

test('a damaged chunk is fetched once more', async () => {
  const { info, warnings } = await load({ flip: { at: dataOffset + CHUNK + 7, times: 1 } });
  assert.equal(info?.from, 'network');
  assert.deepEqual(warnings, ['chunk-refetched']);
});

test('a chunk that stays damaged is an error that names it', async () => {
  const { error } = await load({ flip: { at: dataOffset + CHUNK + 7, times: 100 } });
  assert.equal(error?.code, 'corrupt-data');
  assert.match(error.message, /chunks\.lowbit: chunk 1/);
  const { info } = await load(undefined, { keep: true });
  assert.equal(info?.from, 'network', 'the damaged chunk was not kept');
});

test('a server without ranges is read from the start', async () => {
  const { info } = await load({ noRange: true, cut: { at: dataOffset + CHUNK, times: 1 } });
  assert.equal(info?.from, 'network');
});

test('a file that is not there, or is no model, is said to be so', async () => {
  assert.equal((await load({ status: 404 })).error?.code, 'not-found');
  const page404 = await page.evaluate(() => window.load('/page.js', { threads: 1 }));
  assert.equal(page404.error?.code, 'malformed-file');
  assert.match(page404.error.message, /page\.js/);
});

test('a model that no page can hold is refused before any of it is fetched', async () => {
  for (const [name, size] of [['big.lowbit', 3 * 2 ** 30], ['huge.lowbit', 5 * 2 ** 30], ['big.gguf', 3 * 2 ** 30]]) {
    const file = path.join(TINY, name);
    oversized(file, size);
    try {
      const { error } = await page.evaluate(([u, o]) => window.load(u, o), [`/models/${name}`, options]);
      assert.equal(error?.code, 'out-of-memory', JSON.stringify(error));
      assert.match(error.message, new RegExp(`${name}: the model has \\d{10} bytes, and a page can hold 2147483647`));
    } finally {
      fs.rmSync(file);
    }
  }
});

/** Writes a model of `size` bytes, nearly all of which are a hole in the file. */
function oversized(file, size) {
  if (file.endsWith('.gguf')) {
    fs.copyFileSync(files.smallGguf, file);
  } else {
    const small = fs.readFileSync(files.small);
    const header = JSON.parse(small.subarray(8, 8 + Number(small.readBigUInt64LE())));
    const end = Math.max(...Object.values(header).map((tensor) => tensor.data_offsets?.[1] ?? 0));
    header.hole = { dtype: 'U8', shape: [size - end], data_offsets: [end, size] };
    const manifest = JSON.parse(header.__metadata__.lowbit);
    manifest.chunks = Array(size / manifest.chunk_size).fill(manifest.chunks[0]);
    header.__metadata__.lowbit = JSON.stringify(manifest);
    const json = JSON.stringify(header);
    const padded = json.padEnd(Math.ceil((json.length + 8) / 256) * 256 - 8);
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(padded.length));
    fs.writeFileSync(file, Buffer.concat([length, Buffer.from(padded)]));
    size += 8 + padded.length;
  }
  fs.truncateSync(file, size);
}

test('loading can be aborted and begun again', async () => {
  suite.server.faults.set(url, { pause: 20 });
  await page.evaluate(() => window.lowbit.forgetModels());
  const aborted = await page.evaluate(
    ([u, o]) => {
      const controller = new AbortController();
      window.onLoadProgress = ({ phase, loaded }) => phase === 'download' && loaded > 12e6 && controller.abort();
      return window.load(u, { ...o, signal: controller.signal }).finally(() => (window.onLoadProgress = undefined));
    },
    [url, options],
  );
  assert.equal(aborted.error?.code, 'aborted');
  const { info, resumed } = await load(undefined, { keep: true });
  assert.equal(info?.from, 'network');
  assert.ok(resumed > 0);
});

test('two tabs that want the same model download it once', async () => {
  await page.evaluate(() => window.lowbit.forgetModels());
  suite.server.faults.set(url, { pause: 10 });
  suite.server.requests.length = 0;
  const other = await suite.open();
  const both = await Promise.all([page, other].map((p) => p.evaluate(([u, o]) => window.load(u, o), [url, options])));
  assert.deepEqual(both.map((b) => b.info?.from).sort(), ['cache', 'network']);
  assert.ok(both.some((b) => b.phases.includes('waiting')));
  assert.deepEqual(ranges(), [undefined]);
  await other.close();
});

test('a GGUF file from a URL and one that the user chose give the same model as the packed one', async () => {
  const packed = await load();
  const hash = () => page.evaluate(() => window.model.parity('hello world', { chunk: 3 }).then((p) => p.logitsSha256));
  const expected = await hash();
  const fromUrl = await page.evaluate((o) => window.load('/models/chunks.gguf', o), options);
  assert.equal(fromUrl.info?.from, 'network', JSON.stringify(fromUrl));
  assert.equal(await hash(), expected);
  const again = await page.evaluate((o) => window.load('/models/chunks.gguf', o), options);
  assert.equal(again.info?.from, 'cache', 'what is kept is the packed model');
  assert.equal(await hash(), expected);
  const dropped = await page.evaluate(async (o) => {
    const file = new File([await (await fetch('/models/chunks.gguf')).blob()], 'mine.gguf');
    return window.load(file, o);
  }, options);
  assert.equal(dropped.info?.from, 'file', JSON.stringify(dropped));
  assert.equal(await hash(), expected);
  assert.equal(dropped.info.bytes, packed.info.bytes);
});

test('a damaged GGUF file is an error, not a crash', async () => {
  const damaged = await page.evaluate(async (o) => {
    const bytes = new Uint8Array(await (await fetch('/models/small.gguf')).arrayBuffer());
    const results = [];
    for (const [at, value] of [[8, 0xff], [15, 0xff], [16, 0xff], [4, 9], [40, 0xff], [bytes.length - 1, undefined]]) {
      const copy = value === undefined ? bytes.slice(0, at) : bytes.slice();
      if (value !== undefined) copy[at] = value;
      results.push((await window.load(new File([copy], 'bad.gguf'), o)).error);
    }
    return results;
  }, options);
  for (const error of damaged) {
    assert.ok(error, 'a damaged file was accepted');
    assert.ok(['malformed-file', 'unsupported'].includes(error.code), JSON.stringify(error));
    assert.match(error.message, /bad\.gguf/);
  }
});
