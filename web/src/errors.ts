import type { EngineErrorCode } from './generated.js';

/** What went wrong, as a stable identifier. */
export type ErrorCode =
  | EngineErrorCode
  /** The caller's signal was aborted. */
  | 'aborted'
  /** An argument has no meaning. */
  | 'bad-argument'
  /** The model was disposed. */
  | 'disposed'
  /** The engine stopped at an internal error. The model answers no more calls; load it again. */
  | 'engine-crashed'
  /** The file is another one than when loading began, or can no longer be read. */
  | 'file-changed'
  /** The server cannot be reached, refuses, or the connection was lost too often. */
  | 'network'
  /** The server has no such file. */
  | 'not-found'
  /** The browser lacks something that the engine needs. */
  | 'unsupported-browser'
  /** The wanted device does not exist. */
  | 'unsupported-device'
  /** A worker could not be started, or failed. */
  | 'worker-failed'
  /** A code of a newer engine. */
  | (string & {});

/** Every error that this package throws. */
export class LowbitError extends Error {
  override readonly name = 'LowbitError';
  /** A stable identifier of the cause. */
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
  }
}

/** The form in which errors cross from the worker to the page. */
export interface ErrorData {
  code: ErrorCode;
  message: string;
}

/** Takes anything that was thrown apart, so that it can be posted. */
export function errorData(thrown: unknown): ErrorData {
  if (thrown instanceof LowbitError) return { code: thrown.code, message: thrown.message };
  if (isErrorData(thrown)) return { code: thrown.code, message: thrown.message };
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  const noMemory = thrown instanceof RangeError && /allocation/i.test(message);
  return { code: isAbort(thrown) ? 'aborted' : noMemory ? 'out-of-memory' : 'worker-failed', message };
}

/** Makes an error of what crossed from the worker. */
export function errorFrom(data: ErrorData): LowbitError {
  return new LowbitError(data.code, data.message);
}

/** The error for an aborted call; the reason that the caller gave is its cause. */
export function abortError(signal?: AbortSignal): LowbitError {
  return new LowbitError('aborted', 'the call was aborted', { cause: signal?.reason });
}

/** The error after which an engine is of no use any more; `what` says what happened in it. */
export function crashed(what: string): LowbitError {
  return new LowbitError('engine-crashed', `the engine stopped at an internal error: ${what}; load the model again`);
}

export function isErrorData(value: unknown): value is ErrorData {
  const data = value as Partial<ErrorData> | null;
  return typeof data === 'object' && typeof data?.code === 'string' && typeof data.message === 'string';
}

function isAbort(thrown: unknown): boolean {
  return thrown instanceof Error && thrown.name === 'AbortError';
}
