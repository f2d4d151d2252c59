// Checks the kernels of a WebAssembly module against the oracle and plain Rust, then measures them, in node or Chromium.
// `cargo xtask bench kernels` builds the module and calls this; for more of the command line:
//
//   node --experimental-wasm-relaxed-simd crates/core/examples/kernels/run.mjs MODULE.wasm [--chromium] [--check] [CASE...]
//
// --check measures nothing. --chromium needs playwright-core in web/node_modules; JS_FLAGS are for its V8, such as
// --perf-prof. CASE is part of the name of a case.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const args = process.argv.slice(2);
const flags = new Set(args.filter((arg) => arg.startsWith('--')));
const [file, ...filters] = args.filter((arg) => !arg.startsWith('--'));

/** Runs in node or in a page: instantiates the module and returns lines of results. */
async function measure({ base64, filters, checkOnly }) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const { exports } = (await WebAssembly.instantiate(bytes, {})).instance;
  const text = (length) => new TextDecoder().decode(new Uint8Array(exports.memory.buffer, exports.text(), length).slice());
  const lines = [];
  const isas = [];
  for (let length, i = 0; (length = exports.isa_name(i)); i++) isas.push(text(length));
  for (const [i, isa] of isas.entries()) {
    const failure = exports.check(i);
    lines.push(`${isa}: ${failure ? `DIFFERS: ${text(failure)}` : 'the same bits'}`);
  }
  const seconds = (run) => {
    const start = performance.now();
    run();
    return (performance.now() - start) / 1e3;
  };
  for (let length, i = 0; !checkOnly && (length = exports.prepare(i)); i++) {
    const name = text(length);
    if (filters.length && !filters.some((filter) => name.includes(filter))) continue;
    const results = [];
    for (const [j, isa] of isas.entries()) {
      if (isa === 'scalar') continue;
      // Long enough for the optimising compiler; then pieces long enough for a coarse clock.
      let times = 1;
      while (seconds(() => exports.run(j, times)) < 0.1) times *= 2;
      times = Math.max(1, times >> 3);
      let best = Infinity;
      for (let k = 0; k < 20; k++) best = Math.min(best, seconds(() => exports.run(j, times)) / times);
      results.push(`${isa} ${(exports.macs() / best / 1e9).toFixed(1)} GMAC/s ${(exports.bytes() / best / 1e9).toFixed(1)} GB/s`);
    }
    lines.push(`${name.padEnd(28)} ${results.join('   ')}`);
  }
  return lines;
}

const input = { base64: fs.readFileSync(file).toString('base64'), filters, checkOnly: flags.has('--check') };
let lines;
if (flags.has('--chromium')) {
  const require = createRequire(path.resolve('web/package.json'));
  const { chromium } = require('playwright-core');
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', ...(process.env.JS_FLAGS ? [`--js-flags=${process.env.JS_FLAGS}`] : [])],
  });
  lines = await (await browser.newPage()).evaluate(measure, input);
  await browser.close();
} else {
  lines = await measure(input);
}
console.log(lines.join('\n'));
process.exitCode = lines.some((line) => line.includes('DIFFERS')) ? 1 : 0;
