// @ts-check
// Buttons, texts and parts that fold. Rule of the file: what ends something asks for a second click, without a dialog.

import { cutText } from '../data/protocol.js';
import { element, setText } from './page.js';

const ARMED_MS = 4000;

/** @param {string} text @param {string} title @param {() => void} action */
export function button(text, title, action) {
  const el = element('button', 'button', text);
  el.type = 'button';
  el.title = title;
  el.addEventListener('click', action);
  return el;
}

/**
 * A button that acts at the second click, for which it stays where it is.
 * @param {string} text
 * @param {string} title
 * @param {() => string} question "restart 3 ranks?"
 * @param {() => void} action
 * @param {(text: string) => void} say shows the question
 */
export function carefulButton(text, title, question, action, say) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let armed;
  const tell = (/** @type {string} */ asked) => {
    el.title = asked || title;
    el.style.width = asked ? `${el.getBoundingClientRect().width}px` : '';
    el.classList.toggle('mnb-armed', asked !== '');
    setText(el, asked ? 'sure?' : text);
    say(asked);
  };
  const rest = () => {
    if (armed === undefined) return;
    clearTimeout(armed);
    armed = undefined;
    tell('');
  };
  const el = button(text, title, () => {
    if (armed !== undefined) {
      rest();
      return action();
    }
    tell(`${question()} Click again to confirm`);
    armed = setTimeout(rest, ARMED_MS);
  });
  el.addEventListener('blur', rest);
  return el;
}

/** Put a text on the clipboard, also where the page may not. @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element('textarea', 'unseen');
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}

/** Have the browser save a file. @param {string} name @param {Blob} blob */
export function saveFile(name, blob) {
  const link = element('a', '');
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, '_');
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/**
 * A text as it was written, with a button that copies it.
 * @param {string} title
 * @param {string} text
 * @param {boolean} open
 */
export function textBlock(title, text, open) {
  const box = element('details', 'text');
  box.open = open;
  const summary = element('summary', '', title);
  const copy = button('copy', 'copy this text', () => {
    copyText(text).then(() => {
      setText(copy, 'copied');
      setTimeout(() => setText(copy, 'copy'), 1500);
    });
  });
  const head = element('div', 'text-head');
  head.append(copy);
  const written = element('pre', 'pre', cutText(text, 100_000));
  written.tabIndex = 0; // it scrolls
  box.append(summary, head, written);
  return box;
}

const FOLDED = 'mnb-folded';

/** A part with a name, a note beside it, and a body. */
export class Section {
  /** @param {HTMLElement} el @param {string} name @param {boolean} shown */
  constructor(el, name, shown) {
    this.box = element('details', `section mnb-of-${name}`);
    this.note = element('span', 'section-note');
    const title = `${name[0].toUpperCase()}${name.slice(1)}`;
    this.head = element('summary', 'section-head', title);
    this.head.append(this.note);
    this.body = element('div', `section-body mnb-${name}`);
    this.box.append(this.head, this.body);
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
