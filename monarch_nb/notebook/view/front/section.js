// @ts-check
// A part of the view that folds. Rule of the file: it stays as its reader left it, where the front end remembers anything.

import { element } from './theme.js';

const FOLDED = 'mnb-folded';

/** A part with a name, a note beside it, and a body. */
export class Section {
  /** @param {HTMLElement} el @param {string} name @param {boolean} shown */
  constructor(el, name, shown) {
    this.box = element('details', `section mnb-of-${name}`);
    this.note = element('span', 'section-note');
    const title = `${name[0].toUpperCase()}${name.slice(1)}`;
    const summary = element('summary', 'section-head', title);
    summary.append(this.note);
    this.body = element('div', `section-body mnb-${name}`);
    this.box.append(summary, this.body);
    this.box.hidden = !shown;
    this.box.open = !foldedNames().includes(name);
    this.box.addEventListener('toggle', () => remember(name, !this.box.open));
    el.append(this.box);
  }
}

/** @returns {string[]} */
function foldedNames() {
  try {
    return (localStorage.getItem(FOLDED) ?? '').split(' ');
  } catch {
    return []; // some front ends keep nothing
  }
}

/** @param {string} name @param {boolean} folded */
function remember(name, folded) {
  const names = foldedNames().filter(other => other && other !== name);
  try {
    localStorage.setItem(FOLDED, [...names, ...(folded ? [name] : [])].join(' '));
  } catch {
    // then it is not remembered
  }
}
