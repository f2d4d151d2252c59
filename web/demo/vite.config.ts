import { fileURLToPath } from 'node:url';
import { defineConfig, type Plugin } from 'vite';

/** Everything from this site; models also from elsewhere. WebAssembly needs one permission; nothing is evaluated. */
const CSP = [
  "default-src 'none'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "style-src 'self'",
  "worker-src 'self'",
  "connect-src 'self' https: http://localhost:*",
  "img-src 'self' data:",
  "base-uri 'none'",
  "form-action 'none'",
].join('; ');

/** The built site carries its policy; the development server needs inline styles. */
const policy: Plugin = {
  name: 'content-security-policy',
  apply: 'build',
  transformIndexHtml: () => [
    { tag: 'meta', attrs: { 'http-equiv': 'Content-Security-Policy', content: CSP }, injectTo: 'head-prepend' },
  ],
};

/** Without these headers the engine runs on one thread. */
const isolated = { 'Cross-Origin-Opener-Policy': 'same-origin', 'Cross-Origin-Embedder-Policy': 'require-corp' };

export default defineConfig({
  root: fileURLToPath(new URL('.', import.meta.url)),
  base: './',
  plugins: [policy],
  // The site uses the package as anyone would: by its name, built.
  resolve: { alias: { lowbit: fileURLToPath(new URL('../dist/index.js', import.meta.url)) } },
  build: { target: 'es2022', assetsInlineLimit: 0, modulePreload: { polyfill: false } },
  worker: { format: 'es' },
  server: { headers: isolated, fs: { allow: ['..'] } },
  preview: { headers: isolated },
});
