// The shaders pass the compiler of the browser too: `wgpu` and Chromium differ in what they accept.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, before, test } from 'node:test';
import path from 'node:path';
import { launch } from './support/browser.mjs';
import { ROOT } from './support/paths.mjs';
import { serve } from './support/server.mjs';

let browser;
let server;
before(async () => {
  server = await serve({ '/': path.join(ROOT, 'tests/e2e/page.html') });
  // Without a GPU Chromium computes on the CPU, but only where it is asked to.
  browser = await launch({ args: ['--no-sandbox', '--no-first-run', '--enable-unsafe-webgpu'] });
});
after(async () => {
  await browser.close();
  await server.close();
});

test('Chromium accepts every shader without a message', async () => {
  const command = ['run', '--quiet', '--locked', '--package', 'lowbit-gpu', '--example', 'shaders'];
  const shaders = JSON.parse(execFileSync('cargo', command, { cwd: ROOT, maxBuffer: 64 << 20 }));
  assert.ok(shaders.length > 100, `${shaders.length} shaders`);
  const page = await browser.page(server.url);
  const problems = await page.evaluate(async (shaders) => {
    const adapter = await navigator.gpu.requestAdapter();
    if (!adapter) return ['no adapter'];
    const device = await adapter.requestDevice({ requiredFeatures: [...adapter.features] });
    const problems = device.features.has('subgroups') ? [] : ['no subgroups'];
    // An adapter that computes on the CPU lacks halves: what reads them is compiled by `wgpu` alone then.
    const asksForMore = ({ source }) => source.includes('enable f16;') && !device.features.has('shader-f16');
    for (const { name, source } of shaders.filter((shader) => !asksForMore(shader))) {
      const { messages } = await device.createShaderModule({ code: source }).getCompilationInfo();
      problems.push(...messages.map((m) => `${name}, line ${m.lineNum}: ${m.type}: ${m.message}`));
    }
    return problems;
  }, shaders);
  assert.deepEqual(problems, []);
});
