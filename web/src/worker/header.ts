import { LowbitError } from '../errors.js';

/** Bytes that tell which kind of file this is, and how long an artifact's header is. */
export const PREFIX = 8;

/** No real header is longer: a sane bound before memory is asked for. The engine checks it again. */
const MAX_HEADER = 128 << 20;

/** What a file is, by its first bytes. */
export type Sniffed = { kind: 'gguf' } | { kind: 'artifact'; dataOffset: number };

/** Tells GGUF and artifact apart. */
export function sniff(name: string, prefix: Uint8Array): Sniffed {
  if (prefix.length >= 4 && String.fromCharCode(...prefix.subarray(0, 4)) === 'GGUF') return { kind: 'gguf' };
  const length = prefix.length >= PREFIX ? headerLength(prefix) : Number.NaN;
  if (length >= 2 && length <= MAX_HEADER) return { kind: 'artifact', dataOffset: PREFIX + length };
  const begin = hex(prefix.subarray(0, PREFIX)) || 'nothing';
  const page = prefix[0] === '<'.charCodeAt(0) ? ', like a web page: is the address right?' : '';
  throw new LowbitError('malformed-file', `${name}: neither an artifact nor a GGUF file; it begins with ${begin}${page}`);
}

function headerLength(prefix: Uint8Array): number {
  const length = new DataView(prefix.buffer, prefix.byteOffset, PREFIX).getBigUint64(0, true);
  return Number(length);
}

/** The chunk hashes of an artifact. */
export interface Chunks {
  /** Bytes of every chunk but the last. */
  size: number;
  /** SHA-256 of each, in hexadecimal. */
  hashes: string[];
}

/** Reads the hashes out of an artifact's header. Everything else in it is the engine's to check. */
export function chunksOf(name: string, header: Uint8Array): Chunks {
  let chunks: unknown;
  let size: unknown;
  try {
    const json = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(header.subarray(PREFIX))) as {
      __metadata__?: { lowbit?: string };
    };
    const manifest = JSON.parse(json.__metadata__?.lowbit ?? 'null') as { chunks?: unknown; chunk_size?: unknown } | null;
    chunks = manifest?.chunks;
    size = manifest?.chunk_size;
  } catch (cause) {
    throw new LowbitError('malformed-file', `${name}: the header is not valid JSON`, { cause });
  }
  if (!Array.isArray(chunks) || !chunks.every((hash) => typeof hash === 'string' && /^[0-9a-f]{64}$/.test(hash))) {
    throw new LowbitError('malformed-file', `${name}: the header has no list of chunk hashes; pack the model again`);
  }
  if (!Number.isSafeInteger(size) || (size as number) < 1 << 16 || (size as number) > 64 << 20) {
    throw new LowbitError('malformed-file', `${name}: chunk_size is ${String(size)}; expected 64 KiB to 64 MiB`);
  }
  return { size: size as number, hashes: chunks as string[] };
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
