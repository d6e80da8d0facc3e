/** Fields to write in or choose from, named for those who do not see them. */

import { element, markOf, runsText } from '../front.js';

export function textField(label: string, placeholder: string, type = 'text'): HTMLInputElement {
  const node = named(element('input', 'lab-input'), label);
  node.type = type;
  node.placeholder = placeholder;
  node.spellcheck = false;
  node.autocomplete = 'off';
  return node;
}

/** `options`: [what is read, its value]. */
export function choiceField(label: string, options: readonly [string, string][]): HTMLSelectElement {
  const node = named(element('select', 'lab-input'), label);
  node.append(...options.map(([text, value]) => new Option(text, value)));
  return node;
}

/** A line that is read out when it changes. */
export function statusLine(name: string): HTMLElement {
  const node = element('div', name);
  node.setAttribute('role', 'status');
  return node;
}

/** An element with a name that is not shown. */
export function named<T extends Element>(node: T, label: string): T {
  node.setAttribute('aria-label', label);
  return node;
}

/** A state's shape in its colour; words stand beside it. */
export function markNode(state: string): HTMLElement {
  const { shape, colour } = markOf(state);
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
