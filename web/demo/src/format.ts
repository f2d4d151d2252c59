import type { ModelInfo } from 'lowbit';

/** `98.4 MB` */
export function bytes(count: number): string {
  if (count < 1e6) return `${Math.round(count / 1e3)} kB`;
  return count < 1e9 ? `${(count / 1e6).toFixed(count < 1e7 ? 1 : 0)} MB` : `${(count / 1e9).toFixed(2)} GB`;
}

/** `1 min 20 s` */
export function duration(seconds: number): string {
  if (seconds < 1) return 'a moment';
  if (seconds < 60) return `${Math.round(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

/** `340 ms`, `1.2 s` */
export function milliseconds(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** `86`, `9.3` */
export function rate(perSecond: number): string {
  return perSecond < 10 ? perSecond.toFixed(1) : String(Math.round(perSecond));
}

/** `2 threads, relaxed SIMD`, or what the GPU is called. */
export function engine({ adapter, threads, variant }: Pick<ModelInfo, 'adapter' | 'threads' | 'variant'>): string {
  if (adapter) return `GPU: ${adapter.description || [adapter.vendor, adapter.architecture].filter(Boolean).join(' ') || 'WebGPU'}`;
  return `${threads} thread${threads === 1 ? '' : 's'}, ${variant === 'base' ? 'SIMD' : 'relaxed SIMD'}`;
}
