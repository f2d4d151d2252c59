// What most test files need: a server with the package and models, a browser, a page.
import path from 'node:path';
import { launch } from './browser.mjs';
import { ROOT, WEB } from './paths.mjs';
import { serve } from './server.mjs';

const HERE = path.join(ROOT, 'tests/e2e');

/**
 * Starts a server with `mounts` beside the package, and a browser, which may have `args` of its own. `open()` gives a page
 * that is ready.
 */
export async function start(mounts, options = {}) {
  const server = await serve(
    { '/lowbit/': WEB, ...mounts, '/page.js': path.join(HERE, 'page.js'), '/': path.join(HERE, 'page.html') },
    options,
  );
  const browser = await launch(options.args ? { args: options.args } : {});
  return {
    server,
    browser,
    problems: browser.problems,
    async open() {
      const page = await browser.page(`${server.url}/`);
      await page.waitForFunction('window.ready');
      return page;
    },
    async stop() {
      await browser.close();
      await server.close();
    },
  };
}
