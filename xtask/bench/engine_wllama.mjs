// wllama in the page: the same two functions as engine_lowbit.mjs.

const ROOT = '/packages/@wllama/wllama/esm';
const { Wllama } = await import(`${ROOT}/index.js`);

export async function load({ url, threads, cache }) {
  const silent = { debug() {}, log() {}, warn() {}, error() {} };
  const paths = {};
  for (const kind of ['single-thread', 'multi-thread']) paths[`${kind}/wllama.wasm`] = `${ROOT}/${kind}/wllama.wasm`;
  const wllama = new Wllama(paths, { logger: silent });
  const options = { n_threads: threads, n_ctx: 1024, n_batch: 512 };
  const absolute = new URL(url, location.href).href;
  if (cache) await wllama.loadModelFromUrl(absolute, options);
  else await wllama.loadModel([await (await fetch(absolute)).blob()], options);

  const generate = async (text, decode) => {
    const tokens = await wllama.tokenize(text);
    await wllama.kvClear();
    await wllama.samplingInit({ temp: 0 });
    const start = performance.now();
    await wllama.decode(tokens, {});
    let next = await wllama.samplingSample();
    const first = performance.now();
    for (let i = 0; i < decode; i++) {
      await wllama.samplingAccept([next.token]);
      await wllama.decode([next.token], {});
      next = await wllama.samplingSample();
    }
    return { promptTokens: tokens.length, firstMs: first - start, decodeMs: performance.now() - first, decoded: decode };
  };
  return { generate, info: `${wllama.getNumThreads()} threads` };
}
