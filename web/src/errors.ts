/** What went wrong, as a stable identifier. Codes of the engine pass through unchanged. */
export type ErrorCode =
  // the page and its surroundings
  | 'aborted'
  | 'bad-argument'
  | 'disposed'
  | 'engine-crashed'
  | 'network'
  | 'not-found'
  | 'out-of-memory'
  | 'unsupported-browser'
  | 'unsupported-device'
  | 'worker-failed'
  // files
  | 'io'
  | 'malformed-file'
  | 'unsupported'
  | 'corrupt-data'
  | 'missing-tensor'
  | 'bad-shape'
  // generation
  | 'context-full'
  // a code that a newer engine knows
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
  return { code: isAbort(thrown) ? 'aborted' : 'worker-failed', message };
}

/** Makes an error of what crossed from the worker. */
export function errorFrom(data: ErrorData): LowbitError {
  return new LowbitError(data.code, data.message);
}

/** The error for an aborted call; the reason that the caller gave is its cause. */
export function abortError(signal?: AbortSignal): LowbitError {
  return new LowbitError('aborted', 'the call was aborted', { cause: signal?.reason });
}

function isErrorData(value: unknown): value is ErrorData {
  const data = value as Partial<ErrorData> | null;
  return typeof data === 'object' && typeof data?.code === 'string' && typeof data.message === 'string';
}

function isAbort(thrown: unknown): boolean {
  return thrown instanceof Error && thrown.name === 'AbortError';
}
