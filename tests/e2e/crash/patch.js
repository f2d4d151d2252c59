// `?no-relaxed`: the browser knows no relaxed SIMD. `?alone`: no helper can start. `?engine`: the first step of an answer traps. `?helper`: it waits for ever, as the engine does for a helper that is gone,
// and the helper traps once it does.
const Instance = WebAssembly.Instance;
const trap = () => {
  throw new WebAssembly.RuntimeError('unreachable');
};

// Two words at the lowest end of the stack, which is never that full: whether the engine waits, and what it waits for.
const WAITS = 1;
const NEVER = 2;

if (location.search === '?no-relaxed') {
  const { validate } = WebAssembly;
  // The probe of i32x4.relaxed_dot_i8x16_i7x16_add_s.
  WebAssembly.validate = (bytes) => !String(bytes).includes('253,147,2') && validate(bytes);
}

WebAssembly.Instance = function (module, imports) {
  if (location.search === '?no-relaxed') return new Instance(module, imports);
  if (location.search === '?alone') {
    if (self.name !== '') trap();
    return new Instance(module, imports);
  }
  const { exports } = new Instance(module, imports);
  const words = () => new Int32Array(exports.memory?.buffer ?? Object.values(imports)[0].memory.buffer);
  const waitForHelper = () => {
    Atomics.store(words(), WAITS, 1);
    Atomics.notify(words(), WAITS);
    Atomics.wait(words(), NEVER, 0);
  };
  const lostHelper = () => {
    Atomics.wait(words(), WAITS, 0);
    trap();
  };
  const patched = location.search === '?helper' ? { engine_step: waitForHelper, help: lostHelper } : { engine_step: trap };
  return { exports: { ...exports, ...patched } };
};
