// Parts of the package that do not come: the error names the part, where it was looked for, and what to do.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import fs from 'node:fs';
import path from 'node:path';
import { tiny } from './support/models.mjs';
import { launch } from './support/browser.mjs';
import { TINY, WEB } from './support/paths.mjs';
import { serve } from './support/server.mjs';
import { start } from './support/suite.mjs';

tiny();
const url = '/models/small.lowbit';

/** A suite for the tests of a block, whose pages have this policy. */
function withPolicy(csp) {
  const own = {};
  before(async () => {
    own.suite = await start({ '/models/': TINY }, { csp });
    own.page = await own.suite.open();
    own.load = async (options) => (await own.page.evaluate(([u, o]) => window.load(u, o), [url, { threads: 1, ...options }])).error;
  });
  after(() => own.suite.stop());
  return own;
}

describe('a part is not where it should be', () => {
  const own = withPolicy();

  test('the worker, and a module of it', async () => {
    for (const file of ['worker.js', 'worker/session.js']) {
      own.suite.server.faults.set(`/lowbit/dist/${file}`, { status: 404 });
      const error = await own.load();
      own.suite.server.faults.clear();
      assert.equal(error?.code, 'worker-failed');
      assert.ok(error.message.startsWith(`${own.suite.server.url}/lowbit/dist/worker.js: `), error.message);
      assert.match(error.message, /cannot be loaded; .*`workerUrl`/);
    }
    const forgotten = await own.page.evaluate(() => window.lowbit.forgetModels(undefined, { workerUrl: '/none.js' }).catch((e) => e.message));
    assert.ok(String(forgotten).startsWith(`${own.suite.server.url}/none.js: `), forgotten);
  });

  test('a worker of another origin', async () => {
    const error = await own.load({ workerUrl: 'https://models.test/worker.js' });
    assert.equal(error?.code, 'worker-failed');
    assert.match(error.message, /^https:\/\/models\.test\/worker\.js: .*own origin/);
  });

  test('the module', async () => {
    const wasmUrl = (base) => ({ variant: 'base', wasmUrl: { base } });
    const none = await own.load(wasmUrl('/none.wasm'));
    assert.equal(none?.code, 'network');
    assert.match(none.message, /\/none\.wasm: the server answered 404 for the engine; .*`wasmUrl`/);
    assert.match((await own.load(wasmUrl('/'))).message, /\/: the server answered with a web page, not with the engine; .*`wasmUrl`/);
    const refused = await own.load(wasmUrl('http://localhost:1/base.wasm'));
    assert.equal(refused?.code, 'network');
    assert.match(refused.message, /^http:\/\/localhost:1\/base\.wasm: .*CSP.*`wasmUrl`/);
  });
});

describe('the page forbids workers', () => {
  const own = withPolicy("worker-src 'none'");

  test('which is said', async () => {
    const error = await own.load();
    assert.equal(error?.code, 'worker-failed');
    assert.match(error.message, /\/lowbit\/dist\/worker\.js: .*CSP.*worker-src/);
  });
});

describe('the page forbids WebAssembly', () => {
  const own = withPolicy("script-src 'self'");

  test('which is said', async () => {
    const error = await own.load({ variant: 'base' });
    assert.equal(error?.code, 'unsupported-browser');
    assert.match(error.message, /\/wasm\/base\.wasm: .*'wasm-unsafe-eval'/);
  });
});

test('a bundled worker that does not come is named by the name that the bundler gave it', async () => {
  const site = path.join(WEB, 'demo/dist');
  const worker = fs.readdirSync(path.join(site, 'assets')).find((name) => /^worker-.*\.js$/.test(name));
  const server = await serve({ '/models/smollm2.lowbit': path.join(TINY, 'small.lowbit'), '/': site });
  const browser = await launch();
  try {
    server.faults.set(`/assets/${worker}`, { status: 404 });
    const page = await browser.page(`${server.url}/`);
    await page.click('#pick-default');
    await page.waitForSelector('#picker-error:not([hidden])');
    assert.ok((await page.locator('#picker-error').innerText()).startsWith(`${server.url}/assets/${worker}: `));
  } finally {
    await browser.close();
    await server.close();
  }
});
