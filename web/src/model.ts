import * as checked from './arguments.js';
import { LowbitError } from './errors.js';
import type { CallMessage, Prompt } from './protocol.js';
import type { Connection } from './rpc.js';
import { ChatStream } from './stream.js';
import type { ChatMessage, GenerateOptions, LoadWarning, MemoryUse, ModelInfo } from './types.js';

/** A loaded model. Calls are answered one after the other. */
export class Model {
  #info: Readonly<ModelInfo>;
  readonly #connection: Connection;
  readonly #onWarning: ((warning: LoadWarning) => void) | undefined;

  /** @internal */
  constructor(connection: Connection, info: ModelInfo, onWarning?: (warning: LoadWarning) => void) {
    this.#connection = connection;
    this.#onWarning = onWarning;
    this.#info = Object.freeze(info);
  }

  /** What the model is and how it runs. Another object after the model had to change its device. */
  get info(): Readonly<ModelInfo> {
    return this.#info;
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
    return this.#generate({ messages: checked.messages(messages) }, options);
  }

  /** Continues a text, or a list of token ids, without a chat template. */
  complete(prompt: string | ArrayLike<number>, options: GenerateOptions = {}): ChatStream {
    return this.#generate(checked.prompt(prompt), options);
  }

  /** The token ids of a text, without special tokens around it. */
  async tokenize(text: string): Promise<number[]> {
    return this.#connection.call('tokenize', checked.text('text', text));
  }

  /** The engine's memory now. */
  memory(): Promise<MemoryUse> {
    return this.#connection.call('memory', null);
  }

  /**
   * SHA-256 of the logits of a prompt's last position, computed `chunk` positions at a time. It equals what
   * `lowbit parity` prints for the same model, prompt and precision: on any CPU, with any number of threads. A GPU sums in
   * another order, and has a hash of its own.
   */
  async parity(
    prompt: ChatMessage[] | string | ArrayLike<number>,
    options: { chunk?: number; length?: number; signal?: AbortSignal } = {},
  ): Promise<{ logitsSha256: string; positions: number }> {
    const { chunk = 64, length = 0, signal } = options ?? {};
    const request = {
      prompt: checked.prompt(prompt),
      chunk: checked.integer('chunk', chunk, 1, 0xffff_ffff),
      length: checked.integer('length', length, 0, 0xffff_ffff),
    };
    return this.#connection.call('parity', request, { signal, listener: (message) => this.#heard(message) });
  }

  /** Ends the worker and frees all memory. What is still running fails with code `disposed`. */
  dispose(): void {
    this.#connection.close(new LowbitError('disposed', 'the model was disposed'));
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  /** What a call tells about the model itself. */
  #heard(message: CallMessage): void {
    if (message.type === 'warning') this.#onWarning?.(message.warning);
    else if (message.type === 'info') this.#info = Object.freeze(message.info);
  }

  #generate(prompt: Prompt, options: GenerateOptions): ChatStream {
    const { onPrefill, stream = true, signal } = options ?? {};
    const request = checked.generation(prompt, options ?? {});
    return new ChatStream(
      (feed, abort) =>
        this.#connection.call('generate', request, {
          signal: abort,
          listener: (message) => {
            if (message.type === 'text') feed.text(message.text);
            else if (message.type === 'prefill') onPrefill?.(message.done, message.total);
            else this.#heard(message);
          },
        }),
      !stream,
      signal,
    );
  }
}
