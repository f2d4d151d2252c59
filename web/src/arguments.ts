/** What callers give, checked before it travels: the worker gets nothing that it could misread. */

import { LowbitError } from './errors.js';
import type { GenerateRequest, Prompt } from './protocol.js';
import type { ChatMessage, GenerateOptions } from './types.js';

/** A text; half characters, as an editor may leave them, have no UTF-8 and are replaced. */
export function text(name: string, value: unknown): string {
  if (typeof value !== 'string') throw bad(name, value, 'a text');
  return value.replace(/\p{Surrogate}/gu, '\ufffd');
}

/** An integer between `least` and `most`. */
export function integer(name: string, value: unknown, least = 0, most = Number.MAX_SAFE_INTEGER): number {
  if (Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most) return value as number;
  const range = most === Number.MAX_SAFE_INTEGER ? `of at least ${least}` : `between ${least} and ${most}`;
  throw bad(name, value, `an integer ${range}`);
}

/** One of a few values. */
export function oneOf<T>(name: string, value: unknown, values: readonly T[]): T {
  if (values.includes(value as T)) return value as T;
  throw bad(name, value, `one of ${values.map((v) => JSON.stringify(v)).join(', ')}`);
}

export function messages(value: unknown): ChatMessage[] {
  if (!Array.isArray(value)) throw bad('messages', value, 'an array of {role, content}');
  return value.map((message: Partial<ChatMessage> | null, i) => ({
    role: text(`messages[${i}].role`, message?.role),
    content: text(`messages[${i}].content`, message?.content),
  }));
}

/** Messages, a text or token ids. */
export function prompt(value: ChatMessage[] | string | ArrayLike<number>): Prompt {
  if (typeof value === 'string') return { text: text('prompt', value) };
  if (typeof value !== 'object' || value === null || !('length' in value)) {
    throw bad('prompt', value, 'a text, an array of token ids or one of messages');
  }
  if (typeof value[0] === 'object') return { messages: messages(value) };
  return { ids: Array.from(value as ArrayLike<number>, (id, i) => integer(`prompt[${i}]`, id, 0, 0xffff_ffff)) };
}

/** What the worker needs of a call's options. */
export function generation(prompt: Prompt, { maxTokens, sampling, stop }: GenerateOptions): GenerateRequest {
  if (!Array.isArray(stop ?? [])) throw bad('stop', stop, 'an array of texts');
  return {
    prompt,
    sampling: numbers(sampling ?? {}),
    stop: (stop ?? []).map((value, i) => text(`stop[${i}]`, value)),
    ...(maxTokens !== undefined && { maxTokens: integer('maxTokens', maxTokens) }),
  };
}

/** Sampling parameters that count something. */
const WHOLE = ['topK', 'penaltyWindow', 'seed'];

/** JSON would turn NaN into nothing. What else the numbers may be is the engine's to say. */
function numbers<T extends object>(parameters: T): T {
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined) continue;
    if (WHOLE.includes(name)) integer(name, value);
    else if (!Number.isFinite(value)) throw bad(name, value, 'a finite number');
  }
  return parameters;
}

function bad(name: string, value: unknown, expected: string): LowbitError {
  return new LowbitError('bad-argument', `${name}: is ${shown(value)}, expected ${expected}`);
}

function shown(value: unknown): string {
  return typeof value === 'string' ? JSON.stringify(value.slice(0, 100)) : String(value);
}
