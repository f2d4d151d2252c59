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

/** What `lowbit parity` says about the prompt. That all instruction sets agree is the command line's own test. */
export function cliHash(model, { act, prompt, length }) {
  const isa = ['avx512', 'avx2', 'scalar'].find((name) => supports(model, name));
  const { results } = parity(model, ['--act', act, '--isa', isa, '-p', prompt, ...(length ? ['--length', `${length}`] : [])]);
  return results[0].logits_sha256;
}

const supported = new Map();

/** Whether the command line can run with this instruction set here. */
function supports(model, isa) {
  if (!supported.has(isa)) {
    try {
      parity(model, ['--isa', isa, '--act', 'a8', '--length', '1']);
      supported.set(isa, true);
    } catch {
      supported.set(isa, false);
    }
  }
  return supported.get(isa);
}

function parity(model, more) {
  const all = ['parity', '-m', model, '--json', '--team', '1', '--chunks', '64', ...more];
  return JSON.parse(execFileSync(CLI, all, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }));
}
