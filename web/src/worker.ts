/**
 * The engine's worker. It answers the page's calls one after the other; a helper is this same script, told so by its
 * first message.
 */

import { LowbitError, errorData } from './errors.js';
import type { Calls, FromWorker, ToWorker } from './protocol.js';
import { Session, type SessionReporter } from './worker/session.js';
import { forget } from './worker/store.js';
import { help } from './worker/wasm.js';

const scope = globalThis as unknown as DedicatedWorkerGlobalScope;

/** Calls that have not ended, by id. */
const running = new Map<number, AbortController>();
/** Ends when all calls so far have ended. */
let queue: Promise<void> = Promise.resolve();
let session: Session | undefined;

scope.onmessage = ({ data: message }: MessageEvent<ToWorker>) => {
  switch (message.type) {
    case 'helper':
      return help(message, (answer) => scope.postMessage(answer));
    case 'abort':
      return running.get(message.id)?.abort();
    case 'call': {
      const controller = new AbortController();
      running.set(message.id, controller);
      queue = queue.then(() => answer(message, controller.signal));
    }
  }
};

async function answer(call: Extract<ToWorker, { type: 'call' }>, signal: AbortSignal): Promise<void> {
  const { id } = call;
  try {
    if (signal.aborted) throw new LowbitError('aborted', 'the call was aborted before it began');
    post({ type: 'result', id, value: await perform(call, signal) });
  } catch (error) {
    post({ type: 'error', id, error: errorData(error) });
  } finally {
    running.delete(id);
  }
}

function perform(call: Extract<ToWorker, { type: 'call' }>, signal: AbortSignal): Promise<Calls[keyof Calls][1]> {
  const { id } = call;
  switch (call.name) {
    case 'load':
      return load(id, call.argument, signal);
    case 'generate':
      return loaded().generate(
        call.argument,
        {
          text: (text) => post({ type: 'text', id, text }),
          prefill: (done, total) => post({ type: 'prefill', id, done, total }),
        },
        reporter(id),
        signal,
      );
    case 'tokenize':
      return Promise.resolve(loaded().tokenize(call.argument));
    case 'memory':
      return Promise.resolve(loaded().memory());
    case 'parity':
      return loaded().parity(call.argument, reporter(id), signal);
    case 'forget':
      return forget(call.argument.url);
  }
}

async function load(id: number, argument: Calls['load'][0], signal: AbortSignal): Promise<Calls['load'][1]> {
  session = await Session.load(
    argument,
    {
      progress: (progress) => post({ type: 'progress', id, progress }),
      warning: (warning) => post({ type: 'warning', id, warning }),
    },
    (port) => scope.postMessage({ type: 'helper', port } satisfies FromWorker, [port]),
    signal,
  );
  return session.info;
}

/** What a session tells during a call. */
function reporter(id: number): SessionReporter {
  return {
    warning: (warning) => post({ type: 'warning', id, warning }),
    info: (info) => post({ type: 'info', id, info }),
  };
}

function loaded(): Session {
  if (!session) throw new LowbitError('bad-argument', 'no model is loaded');
  return session;
}

function post(message: FromWorker): void {
  scope.postMessage(message);
}
