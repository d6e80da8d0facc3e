// @ts-check
// A debugger's prompt in the view: what ranks have said, and a line to type. Rule of the file: what ranks say is text; once it is closed, the kernel knows.

import { cutText } from '../data/protocol.js';
import { button } from '../ui/controls.js';
import { element, setText } from '../ui/page.js';

const KEPT = 100_000; // characters
const CLOSED = 'this prompt is closed';

/** The lines that were typed in this page, of all prompts. @type {string[]} */
const typed = [];

/** The text with its last word completed, and the words that it may become. @param {string} text @param {string[]} words */
export function completed(text, words) {
  const [last] = /** @type {RegExpExecArray} */ (/[^\s()[\]{},;:=+*/!-]*$/.exec(text));
  const fits = words.filter(word => word.startsWith(last));
  let common = fits[0] ?? last;
  for (const word of fits) while (!word.startsWith(common)) common = common.slice(0, -1);
  return { text: text.slice(0, text.length - last.length) + common, words: fits };
}

/** The prompt of one rank; `end` when it is to go. */
export class Prompt {
  /** @param {HTMLElement} el @param {import("../data/connection.js").Connection} connection @param {{mesh: string, rank: number, failed: boolean}} wish @param {() => void} onEnd */
  constructor(el, connection, wish, onEnd) {
    this.connection = connection;
    this.log = element('pre', 'pre');
    this.log.setAttribute('role', 'log');
    this.log.tabIndex = 0;
    this.label = element('label', 'prompt', '');
    this.asks = element('span', '', '…');
    this.input = element('input', 'line');
    Object.assign(this.input, { spellcheck: false, autocomplete: 'off', maxLength: 10_000 });
    this.input.setAttribute('aria-label', `debugger's prompt of rank ${wish.rank}`);
    this.input.addEventListener('keydown', event => this.key(event));
    this.label.append(this.asks, this.input);
    el.replaceChildren(
      button('close', 'leave the prompt; ranks stay as they are', onEnd),
      this.log,
      this.label
    );
    this.place = typed.length;
    this.session = connection.session(wish, ({ text, prompt, over }) => this.hear(text, prompt, over));
    this.tried(this.session.opened);
    this.input.focus();
  }

  /** @param {string} text @param {string} prompt @param {boolean} over */
  hear(text, prompt, over) {
    this.write(text);
    if (prompt) setText(this.asks, prompt);
    if (over) this.close(CLOSED);
  }

  /** @param {string} text */
  write(text) {
    const { log } = this;
    log.textContent = `${log.textContent}${cutText(text, KEPT)}`.slice(-KEPT);
    log.scrollTop = log.scrollHeight;
  }

  /** @param {Promise<any>} promise whose error is told */
  async tried(promise) {
    try {
      return await promise;
    } catch (error) {
      this.write(`${/** @type {Error} */ (error).message}\n`);
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { key } = event;
    event.stopPropagation(); // the notebook has shortcuts
    const step = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (key === 'Enter') this.enter();
    else if (key === 'Tab' && !event.shiftKey && this.input.value.trim()) this.complete();
    else if (step) this.recall(step);
    else return;
    event.preventDefault();
  }

  enter() {
    const { value } = this.input;
    this.write(`${this.asks.textContent}${value}\n`);
    if (value && value !== typed.at(-1)) typed.push(value);
    this.place = typed.length;
    this.input.value = '';
    this.tried(this.session.do('line', value));
  }

  /** @param {number} step */
  recall(step) {
    this.place = Math.min(Math.max(this.place + step, 0), typed.length);
    this.input.value = typed[this.place] ?? '';
  }

  async complete() {
    const { value } = this.input;
    const answer = await this.tried(this.session.ask('words', value));
    if (!answer || this.input.value !== value) return;
    const { text, words } = completed(value, answer.words);
    this.input.value = text;
    if (words.length > 1 && text === value) this.write(`${words.join('  ')}\n`);
  }

  /** @param {string} [why] */
  close(why) {
    this.session.close();
    this.input.disabled = true;
    setText(this.asks, why ?? '');
  }
}
