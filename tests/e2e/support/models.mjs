// Synthetic models, and what the command line computes with a model.
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { CLI, ROOT, TINY } from './paths.mjs';

/** Writes the synthetic models once: `small` for what must be quick, `chunks` with an artifact of several chunks. */
export function tiny() {
  const files = Object.fromEntries(
    ['small', 'chunks'].flatMap((name) => [
      [`${name}Gguf`, path.join(TINY, `${name}.gguf`)],
      [name, path.join(TINY, `${name}.lowbit`)],
    ]),
  );
  if (!Object.values(files).every((file) => fs.existsSync(file))) {
    fs.mkdirSync(TINY, { recursive: true });
    execFileSync('cargo', ['run', '--quiet', '--release', '--package', 'lowbit-testing', '--example', 'tiny', '--', TINY], { cwd: ROOT });
    for (const name of ['small', 'chunks']) {
      execFileSync(CLI, ['pack', files[`${name}Gguf`], '-o', files[name]]);
    }
  }
  return files;
}

/** What `lowbit parity` says about the prompt: the one hash that all its ways agree on. */
export function cliHash(model, { act, prompt, length }) {
  const arguments_ = ['parity', '-m', model, '--json', '--act', act, '--team', '1', '--chunks', '64', '-p', prompt];
  if (length) arguments_.push('--length', String(length));
  const { results } = JSON.parse(execFileSync(CLI, arguments_, { encoding: 'utf8' }));
  const hashes = new Set(results.map((result) => result.logits_sha256));
  if (hashes.size !== 1) throw new Error(`the command line disagrees with itself: ${[...hashes].join(', ')}`);
  return [...hashes][0];
}
