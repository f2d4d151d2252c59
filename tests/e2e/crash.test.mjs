// An engine that stops in the middle of an answer: the page is told, loses nothing else, and can load again.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import path from 'node:path';
import { tiny } from './support/models.mjs';
import { ROOT, TINY } from './support/paths.mjs';
import { start } from './support/suite.mjs';

tiny();
const url = '/models/small.lowbit';

let suite;
let page;
before(async () => {
  suite = await start({ '/models/': TINY, '/crash/': path.join(ROOT, 'tests/e2e/crash') });
  page = await suite.open();
});
after(() => suite.stop());

for (const who of ['engine', 'helper']) {
  test(`a trap of the ${who} ends every call with an error that says so, and the model loads again`, async () => {
    const { info, error } = await page.evaluate(
      ([u, w]) => window.load(u, { threads: 2, workerUrl: `/crash/worker.js?${w}` }),
      [url, who],
    );
    assert.equal(error, undefined);
    assert.equal(info.variant, 'threads');
    const calls = await page.evaluate(async () => {
      const { model } = window;
      const running = [window.ask('Hello'), window.ask('And then?')];
      const other = model.memory().catch((e) => ({ error: { code: e.code, message: e.message } }));
      const ended = await Promise.all([...running, other]);
      const later = await window.ask('Still there?');
      model.dispose();
      return [...ended, later];
    });
    assert.deepEqual(calls.map((call) => call.error?.code), Array(4).fill('engine-crashed'), JSON.stringify(calls));
    for (const { error } of calls) assert.match(error.message, /internal error: .*unreachable.*; load the model again/);
    assert.equal(/helper/.test(calls[0].error.message), who === 'helper');
    // No worker is left behind.
    await waitFor(() => page.workers().length === 0);

    const again = await page.evaluate((u) => window.load(u, { threads: 2 }), url);
    assert.equal(again.error, undefined);
    const answer = await page.evaluate(() => window.ask('Hello', { maxTokens: 5 }));
    assert.equal(answer.error, undefined);
    assert.ok(answer.tokens.length > 0);
    await page.evaluate(() => window.model.dispose());
  });
}

test('an engine whose helpers cannot start runs alone and says so', async () => {
  const { info, warnings } = await page.evaluate((u) => window.load(u, { threads: 2, workerUrl: '/crash/worker.js?alone' }), url);
  assert.equal(info?.threads, 1);
  assert.deepEqual(warnings, ['fewer-threads']);
  const answer = await page.evaluate(() => window.ask('Hello', { maxTokens: 5 }));
  assert.equal(answer.error, undefined);
});

test('an engine counts on a helper that is there and slow to begin', async () => {
  const { info, warnings } = await page.evaluate((u) => window.load(u, { threads: 2, workerUrl: '/crash/worker.js?late' }), url);
  assert.equal(info?.threads, 2);
  assert.deepEqual(warnings, []);
  const answer = await page.evaluate(() => window.ask('Hello', { maxTokens: 5 }));
  assert.equal(answer.error, undefined);
});

test('an engine that gets one thread because the browser lacks relaxed SIMD says so', async () => {
  const { info, warnings } = await page.evaluate((u) => window.load(u, { threads: 2, workerUrl: '/crash/worker.js?no-relaxed' }), url);
  assert.deepEqual([info?.variant, info?.threads], ['base', 1]);
  assert.deepEqual(warnings, ['no-relaxed-simd']);
});

async function waitFor(condition) {
  for (let i = 0; i < 100 && !condition(); i++) await new Promise((ready) => setTimeout(ready, 50));
  assert.ok(condition(), condition.toString());
}
