// lowbit in the page, through its published interface.

import { loadModel } from '/lowbit/dist/index.js';

export async function load({ url, threads, cache, activations }) {
  const model = await loadModel(url, { device: 'cpu', threads, activations, context: 1024, cache: cache ? 'only' : false });

  const generate = async (text, decode) => {
    const tokens = await model.tokenize(text);
    const start = performance.now();
    const answer = model.complete(tokens, { maxTokens: decode + 1, sampling: { temperature: 0 } });
    const pieces = answer[Symbol.asyncIterator]();
    await pieces.next();
    const first = performance.now();
    const { tokens: generated } = await answer;
    const decodeMs = performance.now() - first;
    return { promptTokens: tokens.length, firstMs: first - start, decodeMs, decoded: generated.length - 1 };
  };
  const { variant, threads: used, activations: act, loadMs } = model.info;
  // `engine` passes while `data` does; `total` ends before the page hears of it.
  const { total: _, ...parts } = loadMs;
  return { generate, info: `${variant}, ${used} threads, ${act}`, loadMs: parts };
}
