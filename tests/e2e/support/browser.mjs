// A fresh Chromium for one test file.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { createRequire } from 'node:module';
import { WEB } from './paths.mjs';

const { chromium } = createRequire(path.join(WEB, 'package.json'))('playwright-core');

/** How it is started, unless a test says otherwise. */
export const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** The browser of `$CHROMIUM`, or the first one on the path. */
function executable() {
  const names = ['chromium', 'chromium-browser', 'google-chrome'];
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  const found = process.env.CHROMIUM ?? folders.flatMap((dir) => names.map((n) => path.join(dir, n))).find(fs.existsSync);
  if (!found) throw new Error('no chromium on the path; run `cargo xtask setup`, or set CHROMIUM');
  return found;
}

/** Chromium with an empty profile. `page()` opens a page and notes every problem that it reports in `problems`. */
export async function launch(options = {}) {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'lowbit-e2e-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: executable(),
    headless: true,
    args: FLAGS,
    ...options,
  });
  const problems = [];
  return {
    context,
    problems,
    async page(url) {
      const page = await context.newPage();
      page.on('pageerror', (error) => problems.push(`page error: ${error.message}`));
      page.on('console', (message) => {
        if (message.type() === 'error' || message.type() === 'warning') problems.push(`console: ${message.text()}`);
      });
      if (url) await page.goto(url);
      return page;
    },
    async close() {
      await context.close();
      fs.rmSync(profile, { recursive: true, force: true });
    },
  };
}
