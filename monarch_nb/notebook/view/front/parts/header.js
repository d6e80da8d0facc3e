// @ts-check
// The first lines of a view: the mesh's name, how it is, what can be done with it, what was said. Rule of the file: nothing jumps.

import { cutText } from '../data/protocol.js';
import { button, carefulButton } from '../ui/controls.js';
import { element, setText } from '../ui/page.js';

const SAID_MS = 15_000;

/**
 * @typedef {{text: string, title: string, act(): void}} Offer one more button
 * @typedef {object} HeaderEvents
 * @property {(what: "interrupt" | "heal" | "down") => void} act
 * @property {(number: number) => void} onJump
 * @property {Offer[]} offers
 */

/** What stands above the grid. */
export class Header {
  /** @param {HTMLElement} el @param {HeaderEvents} events */
  constructor(el, { act, onJump, offers }) {
    this.name = element('strong', 'name');
    this.summary = element('span', 'summary');
    this.said = element('div', 'said');
    this.said.setAttribute('role', 'status');
    this.number = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.leaving = undefined;
    this.cell = button('', 'go to this cell', () => onJump(this.number));
    this.cell.className = 'mnb-link mnb-cell';
    this.heal = button('heal', '', () => act('heal'));
    this.buttons = element('span', 'buttons');
    this.buttons.append(
      button('interrupt', 'interrupt what these ranks run', () => act('interrupt')),
      this.heal,
      ...offers.map(({ text, title, act: offer }) => button(text, title, offer)),
      carefulButton(
        'stop',
        'end all processes of this mesh',
        () => `Stop ${cutText(this.name.textContent, 20)}?`,
        () => act('down'),
        text => this.say(text)
      )
    );
    const line = element('div', 'header');
    line.append(this.name, this.summary, this.cell, this.buttons, this.said);
    el.append(line);
  }

  /** @param {string} name @param {string} summary @param {{here: boolean, dead: boolean}} state */
  describe(name, summary, { here, dead }) {
    setText(this.name, cutText(name, 60));
    this.buttons.hidden = !here;
    this.heal.disabled = !dead;
    this.heal.title = dead ? 'start the exited ranks again' : 'no rank has exited';
    const text = cutText(summary, 200);
    if (this.summary.textContent === text) return;
    this.summary.textContent = text;
    this.reserve();
  }

  /** Which cell the kernel runs; the place is kept. @param {number | null} number */
  running(number) {
    this.cell.classList.toggle('mnb-runs', number !== null);
    if (number === null) return;
    this.number = number;
    setText(this.cell, `cell In[${number}] is running`);
  }

  /** A summary that was longer keeps its lines: counts change ten times a second. */
  reserve() {
    const height = this.summary.offsetHeight;
    if (height) this.summary.style.minHeight = `${height}px`;
  }

  /** The width is another one. */
  release() {
    this.summary.style.minHeight = '';
    this.reserve();
  }

  /** What is bad stays, the rest is old news after a while. @param {string} text @param {boolean} [bad] */
  say(text, bad = false) {
    clearTimeout(this.leaving);
    if (text && !bad) this.leaving = setTimeout(() => this.say(''), SAID_MS);
    setText(this.said, cutText(text, 400));
    this.said.classList.toggle('mnb-bad', bad);
  }

  /** What an action has said. @param {Promise<{said: string}>} promise */
  async tell(promise) {
    this.say('');
    setText(this.said, '…');
    try {
      this.say((await promise).said);
    } catch (error) {
      this.say(/** @type {Error} */ (error).message, true);
    }
  }
}
