// @ts-check
// The first lines of a view: the mesh's name, how it is, what can be done with it, what was said. Rule of the file: nothing jumps.

import { button, carefulButton } from './buttons.js';
import { cutText } from './protocol.js';
import { element, setText } from './theme.js';

/** The line above the grid. */
export class Header {
  /** @param {HTMLElement} el @param {(what: "interrupt" | "heal" | "down") => void} act */
  constructor(el, act) {
    this.name = element('strong', 'name');
    this.summary = element('span', 'summary');
    this.said = element('div', 'said');
    this.said.setAttribute('role', 'status');
    this.heal = button('heal', 'replace the dead ranks', () => act('heal'));
    this.buttons = element('span', 'buttons');
    this.buttons.append(
      button('interrupt', 'interrupt the selected ranks, or all', () => act('interrupt')),
      this.heal,
      carefulButton(
        'stop',
        'end all processes of this mesh',
        () => `stop ${cutText(this.name.textContent, 20)}?`,
        () => act('down')
      )
    );
    const line = element('header', 'header');
    line.append(this.name, this.summary, this.buttons);
    el.append(line, this.said);
  }

  /** @param {string} name @param {string} summary @param {{here: boolean, dead: boolean}} state */
  describe(name, summary, { here, dead }) {
    setText(this.name, cutText(name, 60));
    setText(this.summary, cutText(summary, 200));
    this.heal.hidden = !dead;
    this.buttons.hidden = !here;
  }

  /** @param {string} text @param {boolean} [bad] */
  say(text, bad = false) {
    setText(this.said, cutText(text, 400));
    this.said.classList.toggle('mnb-bad', bad);
  }

  /** What an action has said. @param {Promise<{said: string}>} promise */
  async tell(promise) {
    this.say('…');
    try {
      this.say((await promise).said);
    } catch (error) {
      this.say(/** @type {Error} */ (error).message, true);
    }
  }
}
