// A static server with faults, for one test file. Nothing outside the mounted folders is served.
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';

const TYPES = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.svg': 'image/svg+xml',
  '.wasm': 'application/wasm',
};

const ISOLATED = {
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Embedder-Policy': 'require-corp',
  'Cross-Origin-Resource-Policy': 'same-origin',
};

/** Bytes written at a time: small enough that a fault hits where it should. */
const PART = 256 << 10;

/**
 * Serves `{prefix: folder or file}`.
 *
 * `faults` maps a path to what goes wrong with it: `cut: {at, times}` closes the connection before byte `at`,
 * `stall: {at, times}` sends nothing more from byte `at` on, `flip: {at, times}` damages byte `at`, `noRange` ignores ranges, `status` refuses, `pause` waits so many
 * milliseconds after each part, `before` is sent before the whole file. `requests` lists what was asked for.
 */
export async function serve(mounts, { isolated = true, csp } = {}) {
  const faults = new Map();
  const requests = [];
  const server = http.createServer((request, response) => {
    const url = decodeURIComponent(new URL(request.url, 'http://localhost').pathname);
    requests.push({ method: request.method, url, range: request.headers.range });
    const file = find(mounts, url);
    const fault = faults.get(url) ?? {};
    if (!file || fault.status) return response.writeHead(fault.status ?? 404).end();
    if (fault.before) {
      const headers = { 'Content-Type': TYPES[path.extname(file)], ...(isolated && ISOLATED) };
      return response.writeHead(200, headers).end(fault.before + fs.readFileSync(file, 'utf8'));
    }
    const size = fs.statSync(file).size;
    const range = fault.noRange ? null : /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const first = range ? Number(range[1]) : 0;
    const last = range?.[2] ? Math.min(Number(range[2]), size - 1) : size - 1;
    response.writeHead(range ? 206 : 200, {
      'Content-Type': TYPES[path.extname(file)] ?? 'application/octet-stream',
      'Content-Length': last - first + 1,
      'Cache-Control': 'no-store',
      ETag: `"${size}-${fault.version ?? 1}"`,
      ...(range && { 'Content-Range': `bytes ${first}-${last}/${size}` }),
      ...(isolated && ISOLATED),
      ...(csp && { 'Content-Security-Policy': csp }),
    });
    if (request.method === 'HEAD') return response.end();
    send(response, file, first, last + 1, fault);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return {
    url: `http://localhost:${server.address().port}`,
    faults,
    requests,
    close: () => new Promise((done) => (server.close(done), server.closeAllConnections())),
  };
}

function find(mounts, url) {
  for (const [prefix, target] of Object.entries(mounts)) {
    if (!url.startsWith(prefix)) continue;
    const rest = path.normalize(url.slice(prefix.length));
    const file = rest === '.' ? target : path.join(target, rest);
    const found = [file, path.join(file, 'index.html')].find((f) => fs.existsSync(f) && fs.statSync(f).isFile());
    if (found && !rest.startsWith('..')) return found;
  }
  return undefined;
}

async function send(response, file, first, end, fault) {
  const handle = await fs.promises.open(file);
  try {
    for (let at = first; at < end && !response.destroyed; ) {
      const { cut, flip, stall } = fault;
      if (strikes(cut, at, PART)) {
        // What was written before is to arrive: destroying drops what still waits here.
        await new Promise((written) => response.write('', written));
        response.destroy();
        return;
      }
      if (strikes(stall, at, PART)) return;
      const part = Buffer.alloc(Math.min(PART, end - at));
      await handle.read(part, 0, part.length, at);
      if (strikes(flip, at, part.length)) part[flip.at - at] ^= 1;
      at += part.length;
      if (!response.write(part)) await drained(response);
      if (fault.pause) await new Promise((ready) => setTimeout(ready, fault.pause));
    }
    response.end();
  } finally {
    await handle.close();
  }
}

/** Whether a fault is due in the bytes at `at`; counts it. */
function strikes(fault, at, length) {
  return fault !== undefined && at <= fault.at && fault.at < at + length && fault.times > 0 && fault.times-- > 0;
}

/** Waits until more can be written, or the client has gone. */
function drained(response) {
  if (response.destroyed) return Promise.resolve();
  return new Promise((ready) => {
    const done = () => {
      response.off('drain', done).off('close', done);
      ready();
    };
    response.on('drain', done).on('close', done);
  });
}
