// The chat site, as a visitor sees it.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import path from 'node:path';
import { launch } from './support/browser.mjs';
import { SMOLLM2, TINY, WEB } from './support/paths.mjs';
import { tiny } from './support/models.mjs';
import { serve } from './support/server.mjs';

const { smallGguf } = tiny();
let server;
let browser;
let page;
before(async () => {
  server = await serve({
    '/models/smollm2.lowbit': SMOLLM2,
    '/models/': path.dirname(SMOLLM2),
    '/tiny/': TINY,
    '/': path.join(WEB, 'demo/dist'),
  });
  browser = await launch();
  page = await browser.page();
  // What the page asks of the engine.
  await page.addInitScript(() => {
    window.asked = [];
    const { postMessage } = Worker.prototype;
    Worker.prototype.postMessage = function (message, ...rest) {
      if (message.name === 'generate') window.asked.push(message.argument);
      return postMessage.call(this, message, ...rest);
    };
  });
  await page.goto(`${server.url}/`);
});
after(async () => {
  await browser.close();
  await server.close();
});

const answers = () => page.locator('.message.assistant:not(.writing)');

test('the default model loads and its answer streams in', async () => {
  await page.click('#pick-default');
  await page.waitForSelector('#composer:not([hidden])', { timeout: 120_000 });
  await page.fill('#prompt', 'What is the capital of France?');
  await page.keyboard.press('Enter');
  await answers().first().waitFor({ timeout: 120_000 });
  assert.match(await answers().first().innerText(), /Paris/);
  assert.match(await page.locator('#stats').innerText(), /tok\/s · 2 threads/);
});

test('Escape stops an answer, and a new chat forgets it', async () => {
  await page.fill('#prompt', 'Write a very long story about the sea.');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('.writing .body')?.textContent?.length > 20);
  await page.keyboard.press('Escape');
  await answers().nth(1).waitFor();
  assert.match(await answers().nth(1).innerText(), /stopped/);
  await page.click('#new-chat');
  assert.equal(await page.locator('.message').count(), 0);
});

test('sampling is as recommended until a slider is moved, and can go back', async () => {
  const choice = page.locator('[name=sampling]');
  const shown = () => page.locator('#settings-form output').allInnerTexts();
  const ask = async () => {
    await page.keyboard.press('Escape');
    await page.click('#new-chat');
    await page.fill('#prompt', 'What is the capital of France?');
    await page.keyboard.press('Enter');
    await answers().waitFor();
    await page.click('#open-settings');
    return page.evaluate(() => window.asked.at(-1).sampling);
  };
  await page.click('#open-settings');
  assert.equal(await choice.locator('option:checked').innerText(), 'recommended for this model');
  assert.deepEqual(await shown(), ['0.00', '0.90', '1.10']);
  // The makers of this model say nothing; greedy, it goes round in circles.
  assert.deepEqual(await ask(), { repetitionPenalty: 1.1 });

  await page.fill('[name=temperature]', '0.3');
  assert.equal(await choice.inputValue(), 'custom');
  assert.deepEqual(await ask(), { temperature: 0.3, topP: 0.9, repetitionPenalty: 1.1 });

  await choice.selectOption('');
  assert.deepEqual(await shown(), ['0.00', '0.90', '1.10']);
  assert.deepEqual(await ask(), { repetitionPenalty: 1.1 });
  await page.keyboard.press('Escape');

  // Another answer needs chance.
  await page.click('.meta button:nth-child(2)');
  await answers().waitFor();
  const { temperature, seed } = await page.evaluate(() => window.asked.at(-1).sampling);
  assert.ok(temperature > 0 && seed > 0);
});

test('a reload reads the model from storage, without a click', async () => {
  server.requests.length = 0;
  await page.reload();
  await page.waitForSelector('#composer:not([hidden])', { timeout: 120_000 });
  const asked = server.requests.filter((r) => r.url.endsWith('.lowbit'));
  assert.deepEqual(asked.map((r) => r.method), ['HEAD']);
});

test('a model of the user replaces it', async () => {
  await page.click('#open-settings');
  await page.click('#change-model');
  await page.setInputFiles('#file', smallGguf);
  await page.waitForFunction(() => document.querySelector('#model-name')?.textContent === 'small');
  await page.fill('#prompt', 'hello');
  await page.keyboard.press('Enter');
  await answers().first().waitFor();
});

test('a model that does not exist is an error that one can read', async () => {
  await page.click('#open-settings');
  await page.click('#change-model');
  await page.fill('#url', `${server.url}/tiny/none.gguf`);
  await page.click('#pick-url button');
  await page.waitForSelector('#picker-error:not([hidden])');
  assert.match(await page.locator('#picker-error').innerText(), /none\.gguf.*404/);
});

test('the page asks this server for nothing else, and says nothing on the console', () => {
  const known = /^\/(|index\.html|icon\.svg|assets\/[\w.-]+|models\/smollm2\.lowbit|tiny\/none\.gguf)$/;
  assert.deepEqual(server.requests.filter((r) => !known.test(r.url)), []);
  // The browser itself reports the 404 that the last test wanted.
  assert.deepEqual(browser.problems.filter((p) => !/404/.test(p)), []);
});
