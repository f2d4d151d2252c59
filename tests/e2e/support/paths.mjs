import path from 'node:path';

export const ROOT = path.resolve(import.meta.dirname, '../../..');
export const WEB = path.join(ROOT, 'web');
export const CLI = process.env.LOWBIT_CLI ?? path.join(ROOT, 'target/release/lowbit');
/** The default model, packed by `cargo xtask demo`. */
export const SMOLLM2 = process.env.LOWBIT_TEST_MODEL ?? path.join(ROOT, 'target/models/smollm2.lowbit');
/** Where the synthetic models are written. */
export const TINY = path.join(ROOT, 'target/models/tiny');
