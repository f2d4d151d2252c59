// What the package promises besides answers: its size, and where it can be imported.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { ROOT, WEB } from './support/paths.mjs';

const BUDGET = 2e6;

function filesUnder(folder) {
  return fs.readdirSync(folder, { recursive: true, withFileTypes: true }).filter((f) => f.isFile()).map((f) => path.join(f.parentPath, f.name));
}

test('the JavaScript and the module that a page loads are under 2 MB', (context) => {
  const scripts = filesUnder(path.join(WEB, 'dist')).filter((f) => f.endsWith('.js'));
  const brotli = (bytes) => zlib.brotliCompressSync(bytes).length;
  for (const [variant, glue] of [['base', 'single'], ['relaxed', 'single'], ['threads', 'shared']]) {
    const files = [...scripts, path.join(WEB, 'wasm', `${glue}.js`)];
    const javascript = Buffer.concat(files.map((f) => fs.readFileSync(f)));
    const module = fs.readFileSync(path.join(WEB, 'wasm', `${variant}.wasm`));
    const raw = javascript.length + module.length;
    context.diagnostic(`${variant}: ${raw} bytes, ${brotli(javascript) + brotli(module)} with brotli`);
    assert.ok(raw < BUDGET, `${variant}: ${raw} bytes`);
  }
});

test('the package can be imported where there is no page', () => {
  const script = `import('${path.join(WEB, 'dist/index.js')}').then((m) => console.log(Object.keys(m).sort().join()))`;
  const exports = execFileSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' }).trim();
  assert.equal(exports, 'LowbitError,abilities,forgetModels,loadModel');
});

test('the tarball holds the code, the modules and both licences', () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'lowbit-pack-'));
  try {
    const npm = (...args) => execFileSync('npm', args, { cwd: WEB, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
    const tarball = path.join(folder, npm('pack', '--silent', '--pack-destination', folder).trim().split('\n').at(-1));
    execFileSync('tar', ['xzf', tarball, '-C', folder]);
    const packed = (name) => path.join(folder, 'package', name);
    for (const name of ['dist/index.js', 'dist/worker.js', 'wasm/base.wasm', 'README.md']) assert.ok(fs.existsSync(packed(name)), name);
    for (const name of ['LICENSE-MIT', 'LICENSE-APACHE']) {
      assert.equal(fs.readFileSync(packed(name), 'utf8'), fs.readFileSync(path.join(ROOT, name), 'utf8'));
    }
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
});

test('everything that package.json exports is there, and nothing evaluates strings', () => {
  const { exports } = JSON.parse(fs.readFileSync(path.join(WEB, 'package.json')));
  for (const target of Object.values(exports).flatMap((entry) => (typeof entry === 'string' ? entry : Object.values(entry)))) {
    assert.ok(fs.existsSync(path.join(WEB, target)), target);
  }
  for (const file of ['dist', 'wasm'].flatMap((folder) => filesUnder(path.join(WEB, folder))).filter((f) => f.endsWith('.js'))) {
    assert.doesNotMatch(fs.readFileSync(file, 'utf8'), /\beval\(|new Function\(/, file);
  }
});
