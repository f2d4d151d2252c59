export { forgetModels, loadModel } from './load.js';
export { LowbitError, type ErrorCode } from './errors.js';
export type { Model } from './model.js';
export type { ChatStream } from './stream.js';
export { abilities, type Abilities } from './variant.js';
export type {
  Activations,
  AdapterInfo,
  ChatMessage,
  ChatResult,
  Device,
  FinishReason,
  GenerateOptions,
  LoadOptions,
  LoadProgress,
  LoadWarning,
  MemoryUse,
  ModelInfo,
  ModelSource,
  Sampling,
  Variant,
} from './types.js';
