import { expect, test } from 'vitest';
import { LowbitError, abilities, loadModel, type Sampling } from '../src/index.js';
import { Model } from '../src/model.js';
import { Connection } from '../src/rpc.js';
import { ChatStream } from '../src/stream.js';
import type { ChatResult } from '../src/types.js';
import { chooseVariant, threadsWarning } from '../src/variant.js';
import { chunksOf, sniff } from '../src/worker/header.js';

const RESULT = { text: 'one two', finishReason: 'stop' } as ChatResult;

function stream(whole = false, signal?: AbortSignal): ChatStream {
  const work = async (feed: { text(piece: string): void }, abort: AbortSignal): Promise<ChatResult> => {
    for (const piece of ['one', '', ' two']) {
      await new Promise((resolve) => setTimeout(resolve));
      if (abort.aborted) throw new LowbitError('aborted', 'aborted');
      feed.text(piece);
    }
    return RESULT;
  };
  return new ChatStream(work, whole, signal);
}

async function collect(answer: ChatStream): Promise<string[]> {
  const pieces: string[] = [];
  for await (const piece of answer) pieces.push(piece);
  return pieces;
}

test('an answer is iterated over, awaited, or both', async () => {
  const answer = stream();
  expect(await collect(answer)).toEqual(['one', ' two']);
  expect(await answer).toBe(RESULT);
  expect(await stream()).toBe(RESULT);
  expect(await collect(stream(true))).toEqual(['one two']);
});

test('leaving the loop aborts the answer', async () => {
  const answer = stream();
  for await (const piece of answer) {
    expect(piece).toBe('one');
    break;
  }
  await expect(answer.result).rejects.toMatchObject({ code: 'aborted' });
});

test('a signal aborts the answer and is the cause', async () => {
  const controller = new AbortController();
  const answer = stream(false, controller.signal);
  controller.abort('enough');
  await expect(collect(answer)).rejects.toMatchObject({ code: 'aborted', cause: 'enough' });
});

test('arguments without a meaning are refused before anything starts', async () => {
  const bad = (options: object) => expect(loadModel('https://models.test/m', options)).rejects;
  await bad({ device: 'gpu' }).toMatchObject({ code: 'unsupported-device' });
  await bad({ signal: AbortSignal.abort() }).toMatchObject({ code: 'aborted' });
  await bad({ threads: 0 }).toMatchObject({ code: 'bad-argument' });
  await bad({ context: 1.5 }).toMatchObject({ code: 'bad-argument' });
  await bad({ activations: 'a4' }).toMatchObject({ code: 'bad-argument' });
  await bad({ cache: 'yes' }).toMatchObject({ code: 'bad-argument' });
  await bad({ variant: 'fast' }).toMatchObject({ code: 'bad-argument' });
  await expect(loadModel(undefined as never)).rejects.toMatchObject({ code: 'bad-argument' });
  await bad({}).toMatchObject({ code: 'unsupported-browser' });
});

/** A worker that records what it is sent, and says what the test wants. */
class FakeWorker {
  sent: { id: number; argument: unknown }[] = [];
  terminated = false;
  onmessage: ((event: { data: unknown }) => void) | undefined;
  onmessageerror: (() => void) | undefined;
  onerror: ((event: { message?: string; preventDefault(): void }) => void) | undefined;
  postMessage(message: { id: number; argument: unknown }): void {
    this.sent.push(structuredClone(message));
  }
  terminate(): void {
    this.terminated = true;
  }
  say(data: unknown): void {
    this.onmessage?.({ data });
  }
}

function connected(): { worker: FakeWorker; connection: Connection; model: Model } {
  const worker = new FakeWorker();
  const connection = new Connection(worker as unknown as Worker, () => 'https://page.test/worker.js');
  return { worker, connection, model: new Model(connection, { name: 'm' } as Model['info']) };
}

test('numbers without a meaning are refused, and half characters replaced', async () => {
  const { worker, model } = connected();
  const bad = (options: { maxTokens?: number; sampling?: Sampling }) => expect(() => model.complete('x', options));
  bad({ maxTokens: Number.NaN }).toThrow(/maxTokens: is NaN, expected an integer/);
  bad({ maxTokens: -1 }).toThrow(/maxTokens/);
  bad({ sampling: { temperature: Number.NaN } }).toThrow(/temperature: is NaN, expected a finite number/);
  bad({ sampling: { seed: 1.5 } }).toThrow(/seed/);
  void model.chat([{ role: 'user', content: 'a\ud800b\u{1f600}' }]);
  expect(worker.sent[0]?.argument).toMatchObject({ prompt: { messages: [{ content: 'a\ufffdb\u{1f600}' }] } });
  expect(() => model.chat(null as never)).toThrow(/messages: is null/);
  expect(() => model.chat([{ role: 'user' } as never])).toThrow(/messages\[0\].content: is undefined, expected a text/);
  expect(() => model.complete(undefined as never)).toThrow(/prompt: is undefined/);
  expect(() => model.complete([1, -1])).toThrow(/prompt\[1\]: is -1/);
  expect(() => model.complete('x', { stop: 'y' as never })).toThrow(/stop: is "y"/);
  await expect(model.tokenize(7 as never)).rejects.toMatchObject({ code: 'bad-argument' });
  await expect(model.parity('x', { chunk: 0 })).rejects.toMatchObject({ code: 'bad-argument' });
});

test('whatever of the engine fails, all calls end with an error that says so', async () => {
  const failures: [code: string, fail: (worker: FakeWorker) => void][] = [
    ['engine-crashed', (worker) => worker.say({ type: 'error', id: 1, error: { code: 'engine-crashed', message: 'x' } })],
    ['worker-failed', (worker) => worker.onmessageerror?.()],
    [
      'engine-crashed',
      (worker) => {
        const { port1, port2 } = new MessageChannel();
        worker.say({ type: 'helper', port: port1 });
        port2.postMessage('unreachable');
      },
    ],
  ];
  for (const [code, fail] of failures) {
    const { worker, model } = connected();
    const calls = [model.memory(), model.tokenize('x')].map((call) => call.catch((error: LowbitError) => error.code));
    fail(worker);
    expect(await Promise.all(calls)).toEqual([code, code]);
    expect(worker.terminated).toBe(true);
    await expect(model.memory()).rejects.toMatchObject({ code });
  }
});

test('the fastest module that the browser accepts is chosen', () => {
  const all = { simd: true, relaxed: true, sharedMemory: true };
  expect(chooseVariant(all, 4)).toBe('threads');
  expect(chooseVariant(all, 1)).toBe('relaxed');
  expect(chooseVariant({ ...all, sharedMemory: false }, 4)).toBe('relaxed');
  expect(chooseVariant({ ...all, relaxed: false }, 4)).toBe('base');
  expect(chooseVariant(all, 4, 'base')).toBe('base');
  expect(() => chooseVariant({ ...all, relaxed: false }, 4, 'relaxed')).toThrow(LowbitError);
  expect(() => chooseVariant({ ...all, simd: false }, 4)).toThrow(/SIMD/);
  expect(abilities().simd).toBe(true);
});

test('one thread where more were asked for has a reason', () => {
  const all = { simd: true, relaxed: true, sharedMemory: true };
  const code = (...args: Parameters<typeof threadsWarning>) => threadsWarning(...args)?.code;
  expect(code(all, 4)).toBeUndefined();
  expect(code({ ...all, sharedMemory: false }, 4)).toBe('not-isolated');
  expect(code({ ...all, relaxed: false }, 4)).toBe('no-relaxed-simd');
  expect(code({ simd: true, relaxed: false, sharedMemory: false }, 4)).toBe('no-relaxed-simd');
  expect(code({ simd: true, relaxed: false, sharedMemory: false }, 1)).toBeUndefined();
  expect(code({ ...all, relaxed: false }, 4, 'base')).toBeUndefined();
});

test('a worker whose script does not come is told from one that fails', async () => {
  const preventDefault = () => undefined;
  const calls = [connected(), connected(), connected()].map(({ worker, model }) => ({ worker, call: model.memory() }));
  calls[0]?.worker.onerror?.({ preventDefault });
  await expect(calls[0]?.call).rejects.toMatchObject({
    code: 'worker-failed',
    message: expect.stringMatching(/^https:\/\/page\.test\/worker\.js: .*cannot be loaded; .*`workerUrl`.*worker-src/) as string,
  });
  calls[1]?.worker.onerror?.({ message: 'boom', preventDefault });
  await expect(calls[1]?.call).rejects.toMatchObject({ message: expect.stringMatching(/worker failed: boom; load/) as string });
  calls[2]?.worker.say({ type: 'progress', id: 1 });
  calls[2]?.worker.onerror?.({ preventDefault });
  await expect(calls[2]?.call).rejects.toMatchObject({ message: expect.stringMatching(/worker failed: it gave no reason/) as string });
});

test('headers are told apart, and bad ones refused', () => {
  const header = (text: string) => {
    const bytes = new Uint8Array(8 + text.length);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
    bytes.set(new TextEncoder().encode(text), 8);
    return bytes;
  };
  const manifest = (m: object) => header(JSON.stringify({ __metadata__: { lowbit: JSON.stringify(m) } }));
  expect(sniff('m', new TextEncoder().encode('GGUF\u0003\0\0\0'))).toEqual({ kind: 'gguf' });
  expect(sniff('m', header('{}'))).toEqual({ kind: 'artifact', dataOffset: 10 });
  expect(() => sniff('m', new Uint8Array(8).fill(255))).toThrow(/neither/);
  expect(() => sniff('m', new Uint8Array(3))).toThrow(/neither/);
  const good = { chunk_size: 1 << 20, chunks: ['0'.repeat(64)] };
  expect(chunksOf('m', manifest(good))).toEqual({ size: 1 << 20, hashes: good.chunks });
  expect(() => chunksOf('m', manifest({ ...good, chunk_size: 5 }))).toThrow(/chunk_size is 5/);
  expect(() => chunksOf('m', manifest({ ...good, chunks: ['x'] }))).toThrow(/hashes/);
  expect(() => chunksOf('m', header('{"a":'))).toThrow(/JSON/);
  expect(() => chunksOf('m', header('{}'))).toThrow(/hashes/);
});
