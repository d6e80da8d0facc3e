// @ts-check
// Stacks of ranks as a folded tree: a bar for each call, as wide as the share of the ranks that are in it. Rule of the file: plain elements, for those who see and those who hear.

import { cutText, runs } from '../data/protocol.js';
import { whoText } from '../data/words.js';
import { button } from '../ui/controls.js';
import { element } from '../ui/page.js';

/** @typedef {{ranks: string, frame?: {file: string, line: number, function: string}, thread?: string, children: Node[]}} Node */

/** @param {Node} tree @returns {HTMLElement} the ranks, and below them what they have called */
export function flame(tree) {
  const box = element('div', 'flame');
  box.append(nodeOf(tree, tree.ranks));
  return box;
}

/** "step() train.py:41", or the thread; of the root the ranks. @param {Node} node */
export function callText({ frame, thread, ranks }) {
  if (!frame) return cutText(thread || whoText(ranks), 80);
  const name = frame.function === '<module>' ? '' : `${frame.function}() `;
  return cutText(`${name}${frame.file.split('/').pop()}:${frame.line}`, 120);
}

/** How the ranks go on: all "together", "apart", or "here" they are. @param {Node} node */
export function wayOf({ children, ranks }) {
  const calls = children.filter(({ thread }) => !thread);
  if (!calls.length) return 'here';
  return calls.length === 1 && calls[0].ranks === ranks ? 'together' : 'apart';
}

/** How many of its ranks have called nothing from here. @param {Node} node */
export function stayOf({ children, ranks }) {
  const gone = new Set(children.flatMap(child => runs(child.ranks)));
  return runs(ranks).filter(rank => !gone.has(rank)).length;
}

/** @param {Node} node @param {string} above the ranks of the call above @returns {HTMLElement} */
function nodeOf(node, above) {
  const { ranks, frame, children } = node;
  const el = element('div', 'call');
  el.style.flexGrow = `${runs(ranks).length}`;
  const who = ranks === above ? '' : `${cutText(ranks, 30)}: `;
  const below = element('div', 'calls', !frame && !children.length ? 'idle' : undefined);
  const bar = button(who + callText(node), '', () => {
    below.hidden = !below.hidden;
    bar.ariaExpanded = `${!below.hidden}`;
  });
  bar.title = `${whoText(ranks)}\n${frame ? `${frame.file}:${frame.line} ${frame.function}` : callText(node)}`;
  bar.className = `mnb-bar mnb-${wayOf(node)}`;
  el.append(bar, below);
  if (children.length) bar.ariaExpanded = 'true';
  below.append(...children.map(child => nodeOf(child, ranks)));
  const stay = children.length ? stayOf(node) : 0;
  if (stay) {
    const rest = element('div', 'call', frame ? '' : 'idle');
    rest.style.flexGrow = `${stay}`;
    below.append(rest);
  }
  return el;
}
