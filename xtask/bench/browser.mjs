// A static server and a fresh Chromium for one measurement.
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { createRequire } from 'node:module';

const HERE = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
const WEB = path.join(HERE, '../../web');
const { chromium } = createRequire(path.join(WEB, 'package.json'))('playwright-core');

const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.mjs': 'text/javascript', '.wasm': 'application/wasm' };
const FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-dev-shm-usage'];

/** Serves `{prefix: folder or file}`, cross-origin isolated or not. */
export async function serve(mounts, isolated) {
  const server = http.createServer((request, response) => {
    const url = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
    const prefix = Object.keys(mounts).find((prefix) => url.startsWith(prefix));
    const file = prefix && path.join(mounts[prefix], path.normalize(url.slice(prefix.length)));
    if (!file || !fs.statSync(file, { throwIfNoEntry: false })?.isFile()) return response.writeHead(404).end();
    const size = fs.statSync(file).size;
    const headers = { 'Content-Type': TYPES[path.extname(file)] ?? 'application/octet-stream', 'Accept-Ranges': 'bytes' };
    if (isolated) {
      headers['Cross-Origin-Opener-Policy'] = 'same-origin';
      headers['Cross-Origin-Embedder-Policy'] = 'require-corp';
    }
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const first = range ? Number(range[1]) : 0;
    const last = range?.[2] ? Math.min(Number(range[2]), size - 1) : size - 1;
    if (range) headers['Content-Range'] = `bytes ${first}-${last}/${size}`;
    response.writeHead(range ? 206 : 200, { ...headers, 'Content-Length': last - first + 1 });
    if (request.method === 'HEAD') return response.end();
    fs.createReadStream(file, { start: first, end: last }).pipe(response);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return { url: `http://localhost:${server.address().port}`, close: () => server.close() };
}

/** The folders that the page needs, with the peers' packages and the models. */
export function mounts({ packages, models }) {
  return {
    '/packages/': path.join(packages, 'node_modules'),
    '/models/': models,
    '/lowbit/': WEB,
    '/': HERE,
  };
}

/** How long a page may take to open, and a browser to start or to end. */
const PATIENCE_MS = 60_000;

/** What `promise` brings, or an error after `ms`. */
export async function within(ms, what, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took longer than ${ms / 1e3} s`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Chromium with an empty profile. */
export async function launch() {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'lowbit-bench-'));
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
  const options = { executablePath, headless: true, args: FLAGS, timeout: PATIENCE_MS };
  const forget = () => fs.rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  const context = await chromium.launchPersistentContext(profile, options).catch((error) => {
    forget();
    throw error;
  });
  context.setDefaultTimeout(PATIENCE_MS);
  return {
    async page(url) {
      const page = await context.newPage();
      page.on('pageerror', (error) => console.error(`page: ${error.message}`));
      page.on('crash', () => console.error('the page crashed'));
      await page.goto(url);
      await page.waitForFunction('window.measure');
      return page;
    },
    /** Never fails: a browser may have died, and its profile goes anyway. */
    async close() {
      await within(PATIENCE_MS, 'closing the browser', context.close()).catch((error) => console.error(error.message));
      forget();
    },
  };
}
