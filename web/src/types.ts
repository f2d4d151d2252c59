/** Where a model comes from: a URL (relative ones against the page), a file that the user chose, or bytes. */
export type ModelSource = string | URL | Blob;

/** The precision of activations in matrix products. */
export type Activations = 'a8' | 'a16';

/** Which module of the engine runs. */
export type Variant = 'base' | 'relaxed' | 'threads';

/** What a model runs on. */
export type Device = 'webgpu' | 'cpu';

/** A GPU, as the browser describes it; much of it may be empty. */
export interface AdapterInfo {
  vendor: string;
  architecture: string;
  device: string;
  description: string;
  /** Whether it is no GPU, but computes on the CPU. */
  isSoftware: boolean;
}

/** How far loading is. */
export interface LoadProgress {
  /**
   * `engine`: the module is fetched and compiled; `waiting`: another tab downloads the same model; `download`: bytes
   * arrive from the network or a file; `cache`: bytes are read from this browser's storage; `start`: the model is built.
   */
  phase: 'engine' | 'waiting' | 'download' | 'cache' | 'start';
  /** Bytes that are there, of `total`. */
  loaded: number;
  /** Bytes of the whole model; 0 while unknown. */
  total: number;
  /** Bytes that were there already when this download began. */
  resumed: number;
}

/** Something that the user may want to know, though the model works. */
export interface LoadWarning {
  /**
   * `storage-quota`: too little storage, the model is not kept; `storage-unavailable`: the browser grants none, or it fails;
   * `chunk-refetched`: a part arrived damaged and was fetched again; `not-isolated`: one thread only, because the page is
   * not cross-origin isolated; `no-relaxed-simd`: one thread only, because the browser lacks relaxed SIMD;
   * `fewer-threads`: the browser could not start all of them; `gpu-failed`: the GPU computes wrongly, has no room or has
   * failed, and the model runs on the CPU; `gpu-slower`: with `device: 'auto'`, the CPU was
   * found to be clearly quicker, and the model runs there; `gpu-lost`: the browser took the GPU away, the model was brought back to it.
   */
  code:
    | 'storage-quota'
    | 'storage-unavailable'
    | 'chunk-refetched'
    | 'not-isolated'
    | 'no-relaxed-simd'
    | 'fewer-threads'
    | 'gpu-failed'
    | 'gpu-slower'
    | 'gpu-lost'
    | (string & {});
  /** In words. */
  message: string;
}

/** Options of {@link loadModel}. */
export interface LoadOptions {
  /**
   * Where the model runs. `auto`, the default: on the GPU where the browser offers one, it passes a test and is not
   * found to be clearly slower than the CPU; else on the CPU. `webgpu`: there in any case, also on an
   * adapter that only computes on the CPU; an error where there is none.
   */
  device?: 'auto' | Device;
  /** Threads of the engine; by default one per core, at most 8. One when the page is not cross-origin isolated. */
  threads?: number;
  /** Overrides the precision that the model asks for. */
  activations?: Activations;
  /** Positions of the context, prompt and answer together; by default the model's own, at most 2048. */
  context?: number;
  /** Called as loading goes on. */
  onProgress?: (progress: LoadProgress) => void;
  /** Called for what does not prevent loading, or, later, answering. */
  onWarning?: (warning: LoadWarning) => void;
  /** Aborts loading. What was downloaded is kept, and a later call goes on from there. */
  signal?: AbortSignal;
  /**
   * Whether a model from a URL is kept in this browser. `true`: kept, and fetched again when the server has another
   * version; `'only'`: as `true`, but a model that is kept whole is used without asking the server; `false`: not kept.
   */
  cache?: boolean | 'only';
  /** Hash a kept model again while it is read. The download of an artifact is always verified. */
  verify?: boolean;
  /** Which module to run; by default the fastest that the browser accepts. */
  variant?: Variant;
  /** Where the modules are, when not beside this package's code. */
  wasmUrl?: Partial<Record<Variant, string | URL>>;
  /** Where the worker's script is, when not beside this package's code. */
  workerUrl?: string | URL;
  /** Headers for requests of the model, such as `Authorization`. */
  headers?: Record<string, string>;
  /**
   * Milliseconds without a byte of the model after which its server counts as stalled, and is asked again as after a lost
   * connection; by default 30 000.
   */
  stallTimeout?: number;
}

/** A message of a conversation. */
export interface ChatMessage {
  role: 'system' | 'user' | 'assistant' | (string & {});
  content: string;
}

/**
 * How the next token is chosen. What is left out is as the model's makers recommend (`model.info.sampling`); where they say
 * nothing the choice is greedy, so that the same question gets the same answer, here and on the command line.
 */
export interface Sampling {
  /** 0 is greedy: the most probable token, always. */
  temperature?: number;
  /** Keeps the `topK` most probable tokens; 0 keeps all. */
  topK?: number;
  /** Keeps the most probable tokens up to this total probability; 1 keeps all. */
  topP?: number;
  /** Keeps tokens at least this probable relative to the best one; 0 keeps all. */
  minP?: number;
  /** Divides the logits of tokens that have occurred; 1 is none. */
  repetitionPenalty?: number;
  /** Is subtracted once from the logit of a token that has occurred. */
  presencePenalty?: number;
  /** Is subtracted per occurrence. */
  frequencyPenalty?: number;
  /** The penalties look at this many of the last tokens, prompt included. */
  penaltyWindow?: number;
  /** The same seed, prompt and options give the same text; another seed gives another one. The default is 0. */
  seed?: number;
}

/** Options of {@link Model.chat} and {@link Model.complete}. */
export interface GenerateOptions {
  /** `false`: the iterator gives the whole answer at once. */
  stream?: boolean;
  /** Most tokens of the answer; by default as many as the context has room for. */
  maxTokens?: number;
  sampling?: Sampling;
  /** Texts that end the answer; they are not part of it. */
  stop?: string[];
  /** Ends the answer; the iterator and the promise reject with code `aborted`. */
  signal?: AbortSignal;
  /** Called as the prompt is read: positions done, of all that have to be computed. */
  onPrefill?: (done: number, total: number) => void;
}

/** Why an answer ended: the model ended it, a stop string appeared, `maxTokens` was reached, the context is full. */
export type FinishReason = 'stop' | 'stop-string' | 'length' | 'context' | (string & {});

/** A finished answer. */
export interface ChatResult {
  text: string;
  finishReason: FinishReason;
  /** The ids of the generated tokens, the one that ended the answer included. */
  tokens: number[];
  /** Tokens of the prompt. */
  promptTokens: number;
  /** Tokens of the prompt that were still in the cache from the previous call. */
  cachedTokens: number;
  /** Milliseconds from the call in the worker to the first token. */
  firstTokenMs: number;
  prefillTokensPerSecond: number;
  decodeTokensPerSecond: number;
}

/** What a loaded model is and how it runs. */
export interface ModelInfo {
  /** The file's name. */
  name: string;
  architecture: string;
  /** Positions of the context. */
  context: number;
  activations: Activations;
  /** How tokens are chosen when nothing is said. */
  sampling: Required<Sampling>;
  device: Device;
  /** The GPU that the model runs on. */
  adapter: AdapterInfo | undefined;
  /**
   * The variants of the GPU's shaders, in words, and whether they are `fixed`, were `measured` by this load or are
   * `remembered` from an earlier one; empty on the CPU.
   */
  kernels: string;
  variant: Variant;
  /** The instruction set as the engine names it. */
  isa: string;
  threads: number;
  /** Bytes of the packed model. */
  bytes: number;
  /** SHA-256 of the artifact's header, which in turn holds the hash of every chunk. */
  fingerprint: string;
  licence: string;
  /** Where the bytes came from. */
  from: 'network' | 'cache' | 'file';
  /** Whether the next load finds the model in this browser. */
  kept: boolean;
  /** Milliseconds of loading. */
  loadMs: { engine: number; data: number; start: number; total: number };
}

/** Memory of the engine in bytes. */
export interface MemoryUse {
  /** All of the engine's memory, the GPU's included. */
  total: number;
  /** The packed weights. */
  weights: number;
  /** Keys and values of the context. */
  kvCache: number;
}
