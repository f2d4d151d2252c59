// What the tests call in the page: the published package, and a few words around it.
import * as lowbit from '/lowbit/dist/index.js';

const errorOf = (error) => ({ error: { code: error.code ?? error.name, message: error.message } });

window.lowbit = lowbit;

/** Codes of warnings that came after a model was loaded. */
window.warned = [];

/** Loads a model into `window.model`. Returns its info, the warnings and the phases of progress, or the error. */
window.load = async (source, options = {}) => {
  const warnings = [];
  const messages = [];
  let isLoaded = false;
  const phases = [];
  let resumed = 0;
  window.model?.dispose();
  try {
    window.model = await lowbit.loadModel(source, {
      ...options,
      onWarning: ({ code, message }) => {
        messages.push(message);
        (isLoaded ? window.warned : warnings).push(code);
      },
      onProgress: (progress) => {
        if (phases.at(-1) !== progress.phase) phases.push(progress.phase);
        resumed = progress.resumed || resumed;
        window.onLoadProgress?.(progress);
      },
    });
    isLoaded = true;
    return { info: window.model.info, warnings, messages, phases, resumed };
  } catch (error) {
    return { ...errorOf(error), warnings, phases };
  }
};

/** Asks a question. Returns the pieces of the answer and its result, or the error. */
window.ask = async (prompt, options = {}, abortAfter = Infinity) => {
  const pieces = [];
  const controller = new AbortController();
  const messages = typeof prompt === 'string' ? [{ role: 'user', content: prompt }] : prompt;
  try {
    const answer = window.model.chat(messages, { signal: controller.signal, ...options });
    for await (const piece of answer) {
      pieces.push(piece);
      if (pieces.length >= abortAfter) controller.abort();
    }
    return { pieces, ...(await answer) };
  } catch (error) {
    return { pieces, ...errorOf(error) };
  }
};

/** Aborts a long prompt after its first chunk. Returns how far it was, and the error. */
window.abortPrefill = async (prompt) => {
  const controller = new AbortController();
  const seen = [];
  const onPrefill = (done, total) => {
    seen.push([done, total]);
    controller.abort();
  };
  try {
    await window.model.complete(prompt, { maxTokens: 1, onPrefill, signal: controller.signal });
    return { seen };
  } catch (error) {
    return { seen, ...errorOf(error) };
  }
};
window.ready = true;
