import { hex } from './header.js';

type Sha256 = (bytes: Uint8Array) => string;

let fallback: Sha256 | undefined;

/** Sets what hashes where there is no WebCrypto: on pages that are not secure contexts. */
export function setFallback(hash: Sha256): void {
  fallback = hash;
}

/** SHA-256 in hexadecimal. */
export async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  if (globalThis.crypto?.subtle) return hex(new Uint8Array(await crypto.subtle.digest('SHA-256', bytes)));
  if (fallback) return fallback(bytes);
  throw new Error('no SHA-256');
}
