// Models on WebGPU, on the adapter that Chromium computes on the CPU: the same tokens, and what happens when a GPU computes
// wrongly, has no room, is lost, or is not there.
import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { FLAGS } from './support/browser.mjs';
import { tiny } from './support/models.mjs';
import { SMOLLM2, TINY } from './support/paths.mjs';
import { start } from './support/suite.mjs';

const SMALL = '/models/small.lowbit';
const GGUF = '/models/small.gguf';
const QUESTION = 'What is the capital of France?';
/** Where a script of the worker can be given a beginning of its own. */
const WORKER = '/lowbit/dist/worker.js';

/** Chromium with a WebGPU adapter, whose process may end as often as a test likes. */
const WITH_WEBGPU = [
  ...FLAGS.filter((flag) => flag !== '--disable-gpu'),
  '--enable-unsafe-webgpu',
  // SwiftShader compiles that extension word by word: most of the time that these tests would take.
  '--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension',
  '--disable-gpu-process-crash-limit',
  '--disable-domain-blocking-for-3d-apis',
];

/** Makes the devices of the worker reachable. */
const EXPOSE = `
  const request = GPUAdapter.prototype.requestDevice;
  globalThis.devices = [];
  GPUAdapter.prototype.requestDevice = async function (...how) {
    const device = await request.apply(this, how);
    devices.push(device);
    return device;
  };
`;

/** A compiler that makes something else of a shader. */
const miscompile = (from, to) => `{
  const create = GPUDevice.prototype.createShaderModule;
  GPUDevice.prototype.createShaderModule = function ({ code, ...rest }) {
    return create.call(this, { code: code.replaceAll(${JSON.stringify(from)}, ${JSON.stringify(to)}), ...rest });
  };
}`;

/** A device whose memory ends at the first buffer of this name. */
const full = (label) => `
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = function (how) {
    return request.call(this, { ...how, requiredLimits: { maxBufferSize: this.limits.maxBufferSize } });
  };
  const create = GPUDevice.prototype.createBuffer;
  GPUDevice.prototype.createBuffer = function (how) {
    return create.call(this, how.label === ${JSON.stringify(label)} ? { ...how, size: this.limits.maxBufferSize } : how);
  };
`;

/** An adapter that says it is a GPU. */
const PRETEND = "Object.defineProperty(GPUAdapterInfo.prototype, 'isFallbackAdapter', { get: () => false });";

/** An adapter without extensions. */
const PLAIN = "Object.defineProperty(GPUAdapter.prototype, 'features', { get: () => new Set() });";

/** Lanes that do not follow each other in their subgroups. */
const SCATTERED = '(lane * 5u + 3u) % LANES';
const SCATTER =
  miscompile('let first = lane - id;', `let first = ${SCATTERED} - id;`) + miscompile('run(group, lane);', `run(group, ${SCATTERED});`);

/** The second device, on which variants are measured, is lost at once. */
const LOSE_SECOND = `
  const open = GPUAdapter.prototype.requestDevice;
  let opened = 0;
  GPUAdapter.prototype.requestDevice = async function (...how) {
    const device = await open.apply(this, how);
    if (++opened === 2) device.destroy();
    return device;
  };
`;

const load = (page, options, url = SMALL) => page.evaluate(([url, options]) => window.load(url, options), [url, options]);
const ask = (page, options) => page.evaluate(([q, options]) => window.ask(q, options), [QUESTION, options]);
const info = (page) => page.evaluate(() => ({ ...window.model.info }));
/** Runs in the worker with the last device that it has. */
const onDevice = (page, script) => page.workers()[0].evaluate(script);

describe('with an adapter', () => {
  let suite;
  let page;
  let onCpu;
  before(async () => {
    tiny();
    suite = await start({ '/models/': TINY, '/smollm2.lowbit': SMOLLM2 }, { args: WITH_WEBGPU });
    const page = await suite.open();
    await load(page, { device: 'cpu', threads: 1 });
    onCpu = await ask(page, { maxTokens: 200 });
    assert.equal(onCpu.tokens.length, 200);
    await page.close();
  });
  after(() => suite.stop());
  beforeEach(async () => {
    page = await suite.open();
    await page.evaluate(() => (window.warned = []));
  });
  afterEach(async () => {
    suite.server.faults.clear();
    await page.close();
  });

  test('an answer has the tokens of the CPU, and its device is told', async () => {
    const { info, warnings } = await load(page, { device: 'webgpu' });
    assert.equal(info.device, 'webgpu');
    assert.equal(info.adapter.isSoftware, true);
    assert.deepEqual(warnings, []);
    const answer = await ask(page, { maxTokens: 40 });
    assert.deepEqual(answer.tokens, onCpu.tokens.slice(0, 40));
    assert.ok(answer.pieces.length > 1);
    const { total, weights, kvCache } = await page.evaluate(() => window.model.memory());
    assert.ok(total >= weights + kvCache && weights > 0);
  });

  test('a model that is kept, and one that is packed on the way, compute the same', async () => {
    for (const [url, cache, from] of [[SMALL, true, 'cache'], [GGUF, false, 'network']]) {
      await load(page, { device: 'cpu', threads: 1 }, url);
      const { info } = await load(page, { device: 'webgpu', cache }, url);
      assert.deepEqual([info.device, info.from], ['webgpu', from]);
      assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
    }
  });

  test('an answer can be aborted, and the next one is right', async () => {
    await load(page, { device: 'webgpu' });
    const aborted = await page.evaluate(([q]) => window.ask(q, { maxTokens: 200 }, 2), [QUESTION]);
    assert.equal(aborted.error.code, 'aborted');
    const prefill = await page.evaluate(() => window.abortPrefill('word '.repeat(100)));
    assert.equal(prefill.error.code, 'aborted');
    assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
  });

  test('"auto" leaves an adapter alone that computes on the CPU', async () => {
    const { info, warnings } = await load(page, { device: 'auto', threads: 1 });
    assert.equal(info.device, 'cpu');
    assert.deepEqual(warnings, []);
  });

  /** How the variants were chosen, and how many devices that took. */
  const chosen = async (options, url) => {
    const { info, warnings } = await load(page, { device: 'webgpu', threads: 1, ...options }, url);
    assert.deepEqual([info.device, warnings], ['webgpu', []]);
    return [/\((\w+)/.exec(info.kernels)[1], await onDevice(page, () => devices.length)];
  };

  /** Puts other variants into what is remembered of GPUs and models, or damages it. */
  const rewrite = (kernels) => page.evaluate(async (kernels) => {
    const notes = await (await (await navigator.storage.getDirectory()).getDirectoryHandle('lowbit')).getDirectoryHandle('notes');
    for await (const note of notes.values()) {
      const record = JSON.parse(await (await note.getFile()).text());
      Object.assign(record.kernels, kernels);
      const writable = await note.createWritable();
      await writable.write(kernels ? JSON.stringify(record) : '{"key":');
      await writable.close();
    }
  }, kernels);

  test('the variants for a GPU and a model are measured once', async () => {
    suite.server.faults.set(WORKER, { before: PRETEND + EXPOSE });
    assert.deepEqual(await chosen(), ['measured', 2]);
    assert.deepEqual(await chosen(), ['remembered', 1]);
    assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
    await rewrite();
    // A damaged record is none; and where measuring fails, the choice is the fixed one.
    suite.server.faults.set(WORKER, { before: PRETEND + EXPOSE + LOSE_SECOND });
    assert.deepEqual(await chosen(), ['fixed', 2]);
    assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
  });

  test('subgroups are used where the adapter has them and they compute rightly', async () => {
    suite.server.faults.set(WORKER, { before: PRETEND });
    await load(page, { device: 'webgpu', threads: 1 });
    await rewrite({ extensions: 1 }); // subgroups
    const ways = [
      ['', /\+subgroups \(remembered/],
      [SCATTER, /\+subgroups \(remembered/],
      [miscompile('subgroupShuffleXor(sum, mask)', '2 * subgroupShuffleXor(sum, mask)'), /^(?!.*\+subgroups).*\(fixed/],
      [PLAIN, /^(?!.*\+subgroups).*\(measured/],
    ];
    for (const [before, kernels] of ways) {
      suite.server.faults.set(WORKER, { before: PRETEND + before });
      const { info, warnings } = await load(page, { device: 'webgpu', threads: 1 });
      assert.deepEqual([info.device, warnings], ['webgpu', []]);
      assert.match(info.kernels, kernels);
      assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
    }
  });

  test('"auto" leaves a GPU alone that is clearly slower than the CPU, and says so', async () => {
    suite.server.faults.set(WORKER, { before: PRETEND });
    await rewrite(); // forgets what was measured
    for (const origin of [/measured/, /remembered/]) {
      const { info, warnings, messages } = await load(page, { device: 'auto', threads: 1 });
      assert.deepEqual([info.device, warnings], ['cpu', ['gpu-slower']]);
      assert.match(messages[0], /a token takes about [\d.]+ ms, [\d.]+ ms on the CPU/);
      assert.match(messages[0], origin);
    }
    assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
  });

  for (const [what, from, to, op] of [
    ['a product', 'terms[r] * scales', 'terms[r] * (scales * 1.01)', /Linear|Gated|Attention|Logits/],
    ['the softmax', 'weight = exp(', 'weight = exp2(', /Attention/],
    ['a product of many rows', 'codes[k] * scales + mins', 'codes[k] * scales - mins', /of 33 rows/],
    ['the choice of the largest logits', 'a.id < b.id', 'a.id > b.id', /TopK/],
    ['a shader that does not compile', 'fn main(', 'fn main(((', /shader/],
  ]) {
    test(`a wrong kernel (${what}) is found before it is used`, async () => {
      suite.server.faults.set(WORKER, { before: miscompile(from, to) });
      const { info, warnings, messages } = await load(page, { device: 'webgpu', threads: 1 });
      assert.equal(info.device, 'cpu');
      assert.deepEqual(warnings, ['gpu-failed']);
      assert.match(messages[0], op);
      assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
    });
  }

  for (const label of ['weights', 'keys']) {
    test(`a GPU without room for ${label} gives way to the CPU before any token`, async () => {
      suite.server.faults.set(WORKER, { before: full(label) });
      const { info, warnings, messages } = await load(page, { device: 'webgpu', threads: 1 });
      assert.equal(info.device, 'cpu');
      assert.deepEqual(warnings, ['gpu-failed']);
      assert.match(messages[0], new RegExp(`GPU.*${label}`));
      assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
    });
  }

  test('activations of one byte are multiplied as bytes; with floats where that fails or is missing', async () => {
    await load(page, { device: 'cpu', threads: 1, activations: 'a8' });
    const { tokens } = await ask(page, { maxTokens: 20 });
    const ways = [
      ['', /^dot4/],
      [miscompile('dot4I8Packed(', '2 * dot4I8Packed('), /^float/],
      ['WGSLLanguageFeatures.prototype.has = () => false;', /^float/],
    ];
    for (const [before, kernels] of ways) {
      suite.server.faults.set(WORKER, { before: `/**/${before}` });
      const { info, warnings } = await load(page, { device: 'webgpu', activations: 'a8' });
      assert.deepEqual([info.device, info.activations, warnings], ['webgpu', 'a8', []]);
      assert.match(info.kernels, kernels);
      assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, tokens);
    }
  });

  test('a model of several chunks, whose rows are long, computes as on the CPU', async () => {
    const url = '/models/chunks.lowbit';
    await load(page, { device: 'cpu', threads: 1 }, url);
    const { tokens } = await ask(page, { maxTokens: 3 });
    const { info } = await load(page, { device: 'webgpu' }, url);
    assert.equal(info.device, 'webgpu');
    assert.deepEqual((await ask(page, { maxTokens: 3 })).tokens, tokens);
  });

  test('the default model goes on with a text as on the CPU', async () => {
    const next = (page) => page.evaluate(async () => (await window.model.complete('The capital of France is', { maxTokens: 2 })).tokens);
    const options = { threads: 1, context: 64 };
    await load(page, { device: 'cpu', ...options }, '/smollm2.lowbit');
    const tokens = await next(page);
    assert.equal(tokens.length, 2);
    const { info } = await load(page, { device: 'webgpu', ...options }, '/smollm2.lowbit');
    assert.equal(info.device, 'webgpu');
    assert.deepEqual(await next(page), tokens);
  });

  /** Asks, and does something to the GPU after some text. */
  const interrupted = async (harm) => {
    const answer = ask(page, { maxTokens: 200 });
    await new Promise((wait) => setTimeout(wait, 700));
    await harm();
    return answer;
  };

  test('a device that is lost is replaced, and the answer goes on; lost again, on the CPU', async () => {
    suite.server.faults.set(WORKER, { before: EXPOSE });
    await load(page, { device: 'webgpu', threads: 1 });
    const destroy = () => onDevice(page, () => devices.at(-1).destroy());
    const answer = await interrupted(destroy);
    assert.deepEqual(answer.tokens, onCpu.tokens);
    assert.deepEqual(await page.evaluate(() => window.warned), ['gpu-lost']);
    assert.equal((await info(page)).device, 'webgpu');
    assert.equal(await onDevice(page, () => devices.length), 2);
    assert.deepEqual((await interrupted(destroy)).tokens, onCpu.tokens);
    assert.deepEqual(await page.evaluate(() => window.warned), ['gpu-lost', 'gpu-failed']);
    assert.equal((await info(page)).device, 'cpu');
    assert.deepEqual((await ask(page, { maxTokens: 20 })).tokens, onCpu.tokens.slice(0, 20));
  });

  test('a device that is lost between two answers is replaced at the next one', async () => {
    suite.server.faults.set(WORKER, { before: EXPOSE });
    await load(page, { device: 'webgpu', cache: false });
    await ask(page, { maxTokens: 5 });
    await onDevice(page, () => devices.at(-1).destroy());
    const again = await ask(page, { maxTokens: 20 });
    assert.deepEqual(again.tokens, onCpu.tokens.slice(0, 20), again.error?.message);
    assert.equal((await info(page)).device, 'webgpu');
  });

  test('an answer survives the end of the GPU process', async () => {
    await load(page, { device: 'webgpu', threads: 1 });
    const session = await suite.browser.context.browser()?.newBrowserCDPSession().catch(() => undefined);
    const answer = await interrupted(async () => {
      const cdp = session ?? (await suite.browser.context.newCDPSession(page));
      await cdp.send('Browser.crashGpuProcess').catch(() => undefined);
    });
    assert.deepEqual(answer.tokens, onCpu.tokens);
    assert.equal((await page.evaluate(() => window.warned)).length, 1);
  });
});

describe('without an adapter', () => {
  let suite;
  before(async () => {
    tiny();
    suite = await start({ '/models/': TINY });
  });
  after(() => suite.stop());

  test('"auto" is the CPU, and "webgpu" an error that says what to do', async () => {
    const page = await suite.open();
    const { info, warnings } = await load(page, { device: 'auto', threads: 1 });
    assert.equal(info.device, 'cpu');
    assert.deepEqual(warnings, []);
    const { error } = await load(page, { device: 'webgpu' });
    assert.equal(error.code, 'unsupported-device');
    assert.match(error.message, /auto/);
    const other = await load(page, { device: 'npu' });
    assert.equal(other.error.code, 'unsupported-device');
  });
});
