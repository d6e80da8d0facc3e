/** Verdicts and ranks as they stand in lists and lines. */

import { element, markOf, runsText } from './front.js';

/** A verdict's shape in its colour; words stand beside it. */
export function markNode(verdict: string): HTMLElement {
  const { shape, colour } = markOf(verdict);
  const node = element('span', `glyph mnb-glyph-${shape}`);
  node.style.color = `var(--mnb-${colour})`;
  node.setAttribute('aria-hidden', 'true');
  return node;
}

/** "rank 3", "ranks 0-3,7", "all ranks". */
export function ranksPhrase(ranks: readonly number[], size: number): string {
  if (ranks.length === 0 || ranks.length === size) {
    return size === 1 ? 'the rank' : `all ${size} ranks`;
  }
  return `${ranks.length === 1 ? 'rank' : 'ranks'} ${runsText(ranks)}`;
}
