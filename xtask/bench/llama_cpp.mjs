// node llama_cpp.mjs PACKAGES MODEL.gguf THREADS RUN WORDS...: llama.cpp on this machine, one measurement per prompt,
// as JSON. A process of its own per run, so that its threads are gone when the other engine is measured.
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { DECODE, prompt } from './prompt.mjs';

const [packages, modelPath, threads, run, ...lengths] = process.argv.slice(2);
const entry = path.join(packages, 'node_modules/node-llama-cpp/dist/index.js');
const { getLlama } = await import(pathToFileURL(entry).href);

const llama = await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: Number(threads) });
const start = performance.now();
const model = await llama.loadModel({ modelPath });
const context = await model.createContext({ contextSize: 1024, threads: Number(threads), batchSize: 512 });
const sequence = context.getSequence();
const loadMs = performance.now() - start;

/** Time to the first token and tokens per second after it. */
async function measure(words, decode = DECODE) {
  const tokens = model.tokenize(prompt(words, run));
  await sequence.clearHistory();
  const start = performance.now();
  let first = 0;
  let count = 0;
  for await (const _ of sequence.evaluate(tokens, { temperature: 0, yieldEogToken: true })) {
    if (count === 0) first = performance.now();
    if (++count > decode) break;
  }
  const seconds = (performance.now() - first) / 1e3;
  return { words, prefill: (tokens.length / (first - start)) * 1e3, decode: (count - 1) / seconds, firstMs: first - start };
}

await measure(16, 4);
const rows = [];
for (const words of lengths) rows.push(await measure(Number(words)));
console.log(JSON.stringify({ release: llama.llamaCppRelease?.release, loadMs, rows }));
process.exit(0);
