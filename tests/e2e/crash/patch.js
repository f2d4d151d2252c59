// What the browser or a part of the engine does instead of what it should, as the query says.
const fault = location.search.slice(1);
const { Instance, validate } = WebAssembly;
const isHelper = self.name !== '';
const trap = () => {
  throw new WebAssembly.RuntimeError('unreachable');
};

// Two words at the lowest end of the stack, which is never that full: whether the engine waits, and what it waits for.
const WAITS = 1;
const NEVER = 2;

/** Functions in place of the module's own ones. */
const patches = {
  // The first step of an answer traps.
  engine: () => ({ engine_step: trap }),
  // The first step waits for ever, as the engine does for a helper that is gone, and the helper traps once it does.
  helper: (exports, words) => ({
    engine_step: () => {
      Atomics.store(words(), WAITS, 1);
      Atomics.notify(words(), WAITS);
      Atomics.wait(words(), NEVER, 0);
    },
    helper_help: () => {
      Atomics.wait(words(), WAITS, 0);
      trap();
    },
  }),
  // A helper that has said it is there begins only after a second.
  late: (exports, words) => ({
    helper_help: (helper) => {
      Atomics.wait(words(), NEVER, 0, 1000);
      exports.helper_help(helper);
    },
  }),
};

if (fault === 'no-relaxed') {
  // The probe of i32x4.relaxed_dot_i8x16_i7x16_add_s.
  WebAssembly.validate = (bytes) => !String(bytes).includes('253,147,2') && validate(bytes);
}
if (fault === 'alone' && isHelper) WebAssembly.Instance = trap;
if (fault in patches) {
  WebAssembly.Instance = function (module, imports) {
    const { exports } = new Instance(module, imports);
    const words = () => new Int32Array(exports.memory?.buffer ?? Object.values(imports)[0].memory.buffer);
    return { exports: { ...exports, ...patches[fault](exports, words) } };
  };
}
