import { LowbitError } from './errors.js';
import type { GenerateRequest, Prompt } from './protocol.js';
import type { Connection } from './rpc.js';
import { ChatStream } from './stream.js';
import type { ChatMessage, GenerateOptions, MemoryUse, ModelInfo } from './types.js';

/** A loaded model. Calls are answered one after the other. */
export class Model {
  /** What the model is and how it runs. */
  readonly info: ModelInfo;
  readonly #connection: Connection;

  /** @internal */
  constructor(connection: Connection, info: ModelInfo) {
    this.#connection = connection;
    this.info = Object.freeze(info);
  }

  /**
   * Answers a conversation. The part of it that the previous call had too is not computed again.
   *
   * ```ts
   * for await (const text of model.chat([{ role: 'user', content: 'Hello!' }])) output.append(text);
   * const { text } = await model.chat(messages, { maxTokens: 100 });
   * ```
   */
  chat(messages: ChatMessage[], options: GenerateOptions = {}): ChatStream {
    if (!Array.isArray(messages) || !messages.every((m) => typeof m?.role === 'string' && typeof m.content === 'string')) {
      throw new LowbitError('bad-argument', 'messages: expected an array of {role, content} with texts');
    }
    return this.#generate({ messages: messages.map(({ role, content }) => ({ role, content })) }, options);
  }

  /** Continues a text, or a list of token ids, without a chat template. */
  complete(prompt: string | ArrayLike<number>, options: GenerateOptions = {}): ChatStream {
    return this.#generate(asPrompt(prompt), options);
  }

  /** The token ids of a text, without special tokens around it. */
  tokenize(text: string): Promise<number[]> {
    return this.#connection.call('tokenize', text);
  }

  /** The engine's memory now. */
  memory(): Promise<MemoryUse> {
    return this.#connection.call('memory', null);
  }

  /**
   * SHA-256 of the logits of a prompt's last position, computed `chunk` positions at a time. It equals what
   * `lowbit parity` prints for the same model, prompt and precision: on any machine, with any number of threads.
   */
  parity(
    prompt: ChatMessage[] | string | ArrayLike<number>,
    options: { chunk?: number; length?: number; signal?: AbortSignal } = {},
  ): Promise<{ logitsSha256: string; positions: number }> {
    const { chunk = 64, length = 0, signal } = options;
    return this.#connection.call('parity', { prompt: asPrompt(prompt), chunk, length }, { signal });
  }

  /** Ends the worker and frees all memory. What is still running fails with code `disposed`. */
  dispose(): void {
    this.#connection.close(new LowbitError('disposed', 'the model was disposed'));
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  #generate(prompt: Prompt, options: GenerateOptions): ChatStream {
    const { maxTokens, sampling = {}, stop = [], onPrefill, stream = true, signal } = options;
    const request: GenerateRequest = { prompt, sampling, stop };
    if (maxTokens !== undefined) request.maxTokens = maxTokens;
    return new ChatStream(
      (feed, abort) =>
        this.#connection.call('generate', request, {
          signal: abort,
          listener: (message) => {
            if (message.type === 'text') feed.text(message.text);
            else if (message.type === 'prefill') onPrefill?.(message.done, message.total);
          },
        }),
      !stream,
      signal,
    );
  }
}

function asPrompt(prompt: ChatMessage[] | string | ArrayLike<number>): Prompt {
  if (typeof prompt === 'string') return { text: prompt };
  const first: unknown = prompt[0];
  if (typeof first === 'object') return { messages: prompt as ChatMessage[] };
  return { ids: Array.from(prompt as ArrayLike<number>) };
}
