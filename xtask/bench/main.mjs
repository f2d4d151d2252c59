// Measures lowbit and its peers in turn and prints medians and ratios. `cargo xtask bench` prepares everything and
// calls this.
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, renameSync, rmSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { launch, mounts, serve, within } from './browser.mjs';
import { DECODE, median, prompt } from './prompt.mjs';

const LENGTHS = [128, 512];
const string = { type: 'string' };
const { values, positionals: files } = parseArgs({
  options: {
    kind: string,
    threads: string,
    runs: string,
    lowbit: string,
    packages: string,
    models: string,
    'without-amx': { type: 'boolean', default: false },
  },
  allowPositionals: true,
});
const { kind, lowbit, packages, models } = values;
const threads = Number(values.threads);
const runs = Number(values.runs);
const withoutAmx = values['without-amx'];

/** No measurement in a page takes as long. */
const LIMIT_MS = 300_000;

/** Calls `work` once more when it fails: a browser may die, and a run of an hour must not die with it. */
async function twice(name, work) {
  try {
    return await work();
  } catch (error) {
    process.stderr.write(`\n${name} failed and is tried once more: ${error.message}\n`);
    return work();
  }
}

/** Calls each of `sides` in turn, `runs` times; returns the results by side. */
async function inTurn(sides) {
  const results = Object.fromEntries(Object.keys(sides).map((name) => [name, []]));
  for (let run = 0; run < runs; run++) {
    for (const [name, side] of Object.entries(sides)) {
      process.stderr.write(`\r${name}: run ${run + 1} of ${runs}`.padEnd(60));
      results[name].push(await twice(name, () => side(run)));
    }
  }
  process.stderr.write('\r'.padEnd(60) + '\r');
  return results;
}

/** Prints medians, and the ratio of every side to the last one, which is the peer. */
function table(title, results) {
  const names = Object.keys(results);
  const peer = names.at(-1);
  const tasks = {};
  for (const name of names) {
    for (const { rows } of results[name]) {
      for (const row of rows) {
        for (const what of ['prefill', 'decode']) {
          const task = what === 'prefill' ? `prefill ${row.words}` : `decode ${DECODE} after ${row.words}`;
          ((tasks[task] ??= {})[name] ??= []).push(row[what]);
        }
      }
    }
  }
  console.log(`\n${title}, tok/s, median of ${runs}`);
  const columns = [...names, ...names.slice(0, -1).map((name) => `${name} : ${peer}`)];
  console.log(['task', ...columns].map((text) => text.padEnd(22)).join(''));
  for (const [task, values] of Object.entries(tasks)) {
    const medians = names.map((name) => median(values[name]));
    const ratios = medians.slice(0, -1).map((value) => `${(value / medians.at(-1)).toFixed(2)} x`);
    console.log([task, ...medians.map((value) => value.toFixed(1)), ...ratios].map((text) => text.padEnd(22)).join(''));
  }
}

/** lowbit natively, with prompts of every length. */
const ourNative = (model, act, count) => (run) => ({ rows: LENGTHS.map((words) => ourRun(model, act, count, run, words)) });

function ourRun(model, act, count, run, words) {
  const args = ['run', '-m', model, '--act', act, '--threads', count, '--raw', '--greedy', '-n', DECODE + 1, '--json'];
  if (withoutAmx) args.push('--isa', 'avx512');
  const text = execFileSync(lowbit, [...args, '-p', prompt(words, run)].map(String), { encoding: 'utf8' });
  const { prefill_tok_s: prefill, decode_tok_s: decode } = JSON.parse(text);
  return { words, prefill, decode };
}

/** llama.cpp takes the best of the libraries beside it: without this one it has no AMX, and AVX-512 instead. */
const AMX_LIBRARY = 'libggml-cpu-sapphirerapids.so';

/** The folder of the peers' packages, or of a copy in which llama.cpp has no AMX. */
function peers() {
  if (!withoutAmx) return packages;
  const copy = path.join(packages, 'without-amx');
  if (!existsSync(copy)) {
    // Under its name only when it is whole.
    const partial = `${copy}.partial`;
    const filter = (file) => path.basename(file) !== AMX_LIBRARY;
    rmSync(partial, { recursive: true, force: true });
    cpSync(path.join(packages, 'node_modules'), path.join(partial, 'node_modules'), { recursive: true, filter });
    renameSync(partial, copy);
  }
  return copy;
}

function theirNative(model, run) {
  const script = path.join(import.meta.dirname, 'llama_cpp.mjs');
  const args = [script, peers(), model, threads, run, ...LENGTHS].map(String);
  return JSON.parse(execFileSync(process.execPath, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }));
}

async function native(model) {
  const file = path.join(models, model);
  const ours = (act) => ourNative(file, act, threads);
  const sides = { 'lowbit a8': ours('a8'), 'lowbit a16': ours('a16'), 'llama.cpp': (run) => theirNative(file, run) };
  table(`native, ${threads} threads${withoutAmx ? ', without AMX' : ''}, ${model}`, await inTurn(sides));
}

/** Runs a function of page.html in a fresh browser. */
async function inPage(server, engine, call, argument, visits = 1) {
  const browser = await launch();
  try {
    let result;
    for (let visit = 0; visit < visits; visit++) {
      const page = await browser.page(`${server.url}/page.html?engine=${engine}`);
      const measuring = page.evaluate(([call, argument]) => window[call](argument), [call, argument]);
      result = await within(LIMIT_MS, `${engine}: ${call}`, measuring);
      await page.close();
    }
    return result;
  } finally {
    await browser.close();
  }
}

/** An engine in a page, with prompts of every length. */
const measured = (server, model, threads, engine, activations) => (run) =>
  inPage(server, engine, 'measure', { url: `/models/${model}`, threads, activations, run, lengths: LENGTHS });

async function page(model, isolated) {
  const server = await serve(mounts({ packages, models }), isolated);
  const used = isolated ? threads : 1;
  const side = (engine, activations) => measured(server, model, used, engine, activations);
  const sides = { 'lowbit a8': side('lowbit', 'a8'), 'lowbit a16': side('lowbit', 'a16'), wllama: side('wllama') };
  table(`page, ${used} threads, ${isolated ? '' : 'not '}isolated, ${model}`, await inTurn(sides));
  server.close();
}

/** All threads and one, of lowbit alone: natively, and in a page that is isolated and one that is not. */
async function scaling(model) {
  const file = path.join(models, model);
  const all = `${threads} threads`;
  const natively = { [all]: ourNative(file, 'a8', threads), '1 thread': ourNative(file, 'a8', 1) };
  table(`native, a8, ${model}`, await inTurn(natively));
  const isolated = await serve(mounts({ packages, models }), true);
  const alone = await serve(mounts({ packages, models }), false);
  const inPages = { [all]: measured(isolated, model, threads, 'lowbit', 'a8'), '1 thread': measured(alone, model, 1, 'lowbit', 'a8') };
  table(`page, a8, ${model}`, await inTurn(inPages));
  isolated.close();
  alone.close();
}

/** From the start of the navigation to the first token of a prompt of 128 tokens; the model is in the browser's storage. */
async function firstToken(model) {
  const server = await serve(mounts({ packages, models }), true);
  const side = (engine, url) => (run) =>
    inPage(server, engine, 'firstToken', { url, threads, cache: true, run, words: 128 }, 2);
  // Each from the file that it keeps: ours packs once, the peer keeps the GGUF.
  const sides = { lowbit: side('lowbit', '/models/smollm2.lowbit'), wllama: side('wllama', `/models/${model}`) };
  const results = await inTurn(sides);
  const total = (name) => median(results[name].map((result) => result.total));
  const [ours, theirs] = [total('lowbit'), total('wllama')];
  console.log(`\npage load to first token, cached, 128 tokens, median of ${runs}`);
  console.log(`lowbit ${ours.toFixed(0)} ms, wllama ${theirs.toFixed(0)} ms, ${(ours / theirs).toFixed(2)} x`);
  const parts = Object.keys(results.lowbit[0].parts);
  const medians = parts.map((part) => `${part} ${median(results.lowbit.map((result) => result.parts[part])).toFixed(0)} ms`);
  console.log(`lowbit: ${medians.join(', ')} (the engine starts while the data is read)`);
  server.close();
}

for (const model of files) {
  if (kind === 'native' || kind === 'all') await native(model);
  if (kind === 'page' || kind === 'all') {
    await page(model, true);
    await page(model, false);
  }
  if (kind === 'threads') await scaling(model);
}
if (['page', 'first-token', 'all'].includes(kind)) await firstToken(files[0]);
