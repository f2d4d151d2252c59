/** The messages between the page, the engine's worker and its helpers: all of them, and nowhere else. */

import type { ErrorData } from './errors.js';
import type {
  Activations,
  ChatMessage,
  ChatResult,
  Device,
  LoadProgress,
  LoadWarning,
  MemoryUse,
  ModelInfo,
  Sampling,
  Variant,
} from './types.js';

/** What the worker needs to load a model. All URLs are absolute: the page resolves them. */
export interface LoadRequest {
  source: { url: string } | { blob: Blob; name: string };
  wasmUrls: Record<Variant, string>;
  device: 'auto' | Device;
  variant?: Variant;
  threads: number;
  activations?: Activations;
  context?: number;
  cache: boolean | 'only';
  verify: boolean;
  headers: Record<string, string>;
  /** Milliseconds without a byte after which a server counts as stalled. */
  stallTimeout: number;
}

/** A prompt: messages for the chat template, plain text, or ids. */
export type Prompt = { messages: ChatMessage[] } | { text: string } | { ids: number[] };

export interface GenerateRequest {
  prompt: Prompt;
  maxTokens?: number;
  sampling: Sampling;
  stop: string[];
}

export interface ParityRequest {
  prompt: Prompt;
  /** Positions that are computed at a time. */
  chunk: number;
  /** The prompt's tokens are repeated up to this number, if it is not 0. */
  length: number;
}

/** Calls that give one value: the argument and the result of each. */
export interface Calls {
  load: [LoadRequest, ModelInfo];
  generate: [GenerateRequest, ChatResult];
  tokenize: [string, number[]];
  memory: [null, MemoryUse];
  parity: [ParityRequest, { logitsSha256: string; positions: number }];
  forget: [{ url?: string }, number];
}

export type CallName = keyof Calls;

/** Page to worker. */
export type ToWorker =
  | { [N in CallName]: { type: 'call'; id: number; name: N; argument: Calls[N][0] } }[CallName]
  | { type: 'abort'; id: number }
  | HelperStart;

/** Worker to page. `id` is that of the call which the message belongs to. */
export type FromWorker = CallMessage | HelperPort;

export type CallMessage =
  | { type: 'result'; id: number; value: unknown }
  | { type: 'error'; id: number; error: ErrorData }
  | { type: 'progress'; id: number; progress: LoadProgress }
  | { type: 'warning'; id: number; warning: LoadWarning }
  | { type: 'info'; id: number; info: ModelInfo }
  | { type: 'prefill'; id: number; done: number; total: number }
  | { type: 'text'; id: number; text: string };

/**
 * Worker to page: a helper was started, and says on `port` when it fails. The engine cannot tell the page, because it
 * waits, without looking for messages, for what that helper will never finish.
 */
export interface HelperPort {
  type: 'helper';
  port: MessagePort;
}

/** What a helper says on its port, if ever: why it failed. */
export type HelperFailure = string;

/** Engine worker to helper: join the team on this memory. A helper answers once and then blocks. */
export interface HelperStart {
  type: 'helper';
  index: number;
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  port: MessagePort;
}

export type FromHelper = { type: 'ready' } | { type: 'failed'; message: string };
