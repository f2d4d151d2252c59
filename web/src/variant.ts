import { LowbitError } from './errors.js';
import type { LoadWarning, Variant } from './types.js';

/** A module with one function whose body is `body`; its type is `() -> ()`. */
function probe(body: number[]): Uint8Array<ArrayBuffer> {
  const code = [0, ...body, 0x0b];
  return new Uint8Array([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, // magic, version
    1, 4, 1, 0x60, 0, 0, // types
    3, 2, 1, 0, // functions
    10, code.length + 2, 1, code.length, ...code,
  ]);
}

// i32.const 0; i8x16.splat; i8x16.popcnt; drop: the last instructions that simd128 got.
const SIMD = probe([0x41, 0, 0xfd, 0x0f, 0xfd, 0x62, 0x1a]);
// three times i32.const 0; i8x16.splat; then i32x4.relaxed_dot_i8x16_i7x16_add_s; drop.
const RELAXED = probe([0x41, 0, 0xfd, 0x0f, 0x41, 0, 0xfd, 0x0f, 0x41, 0, 0xfd, 0x0f, 0xfd, 0x93, 0x02, 0x1a]);

/** What the browser can run. */
export interface Abilities {
  simd: boolean;
  relaxed: boolean;
  sharedMemory: boolean;
}

/** Asks the browser what it can run. */
export function abilities(): Abilities {
  return {
    simd: WebAssembly.validate(SIMD),
    relaxed: WebAssembly.validate(RELAXED),
    sharedMemory: globalThis.crossOriginIsolated === true && typeof SharedArrayBuffer === 'function',
  };
}

/** The fastest module that the browser accepts, or the wanted one if it does. */
export function chooseVariant(can: Abilities, threads: number, wanted?: Variant): Variant {
  if (!can.simd) {
    throw new LowbitError('unsupported-browser', 'this browser has no WebAssembly SIMD; any browser of 2023 or later does');
  }
  const able: Record<Variant, boolean> = {
    base: true,
    relaxed: can.relaxed,
    threads: can.relaxed && can.sharedMemory,
  };
  if (wanted !== undefined) {
    if (able[wanted]) return wanted;
    throw new LowbitError('unsupported-browser', `this page cannot run the module "${wanted}"; leave \`variant\` out`);
  }
  if (able.threads && threads > 1) return 'threads';
  return able.relaxed ? 'relaxed' : 'base';
}

/** Why the engine runs on one thread though more were asked for; `undefined` when it does not, or the caller chose so. */
export function threadsWarning(can: Abilities, threads: number, wanted?: Variant): LoadWarning | undefined {
  if (threads === 1) return undefined;
  // First: without it no header of the page would help.
  if (!can.relaxed && wanted === undefined) {
    const message = 'this browser has no relaxed SIMD, which the module with threads needs: the engine runs on one thread';
    return { code: 'no-relaxed-simd', message };
  }
  if (can.sharedMemory) return undefined;
  const message = 'the page is not cross-origin isolated (COOP and COEP headers): the engine runs on one thread';
  return { code: 'not-isolated', message };
}
