// The text that every engine reads in every measurement.

const SENTENCE =
  'The quick brown fox jumps over the lazy dog near the old river bank while the autumn wind carries golden leaves across the quiet meadow .';

/** A text of `words` words, nearly one token each, that differs from run to run: no engine may reuse its cache. */
export function prompt(words, run) {
  const text = `${run} ` + `${SENTENCE} `.repeat(Math.ceil(words / 26));
  return text.split(' ').slice(0, words).join(' ');
}

/** Tokens decoded after the first one. */
export const DECODE = 64;

export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
