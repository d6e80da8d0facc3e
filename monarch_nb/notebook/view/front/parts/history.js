// @ts-check
// Failures that are over, until somebody dismisses them, the newest first. Rule of the file: all text is text.

import { cutText } from '../data/protocol.js';
import { ageText, cellNumber, dayText } from '../data/words.js';
import { button } from '../ui/controls.js';
import { element, setText } from '../ui/page.js';
import { placeText, ranksText, tellMore } from './failures.js';

/**
 * @typedef {import("../data/protocol.js").PastFailure} PastFailure
 * @typedef {{row: HTMLElement, age: HTMLElement, past: PastFailure}} Shown
 */

const LATEST = 4; // the rest are a click away

export class History {
  /** @param {HTMLElement} el @param {{ask(id: number): Promise<{text: string, lines?: string[]}>, dismiss(id: number | null): void, onJump(number: number): void}} events */
  constructor(el, events) {
    this.events = events;
    /** @type {Map<number, Shown>} */
    this.shown = new Map();
    this.most = LATEST;
    /** @type {PastFailure[]} */
    this.past = [];
    this.rows = element('div', 'past-rows');
    this.rows.setAttribute('role', 'list');
    this.older = button('', 'show all', () => {
      this.most = Infinity;
      this.update(this.past, this.clock);
    });
    this.older.className = 'mnb-link';
    const all = button('dismiss all', 'show none of these any more, in any page', () =>
      events.dismiss(null)
    );
    all.className = 'mnb-link';
    const foot = element('div', 'past-foot');
    foot.append(this.older, all);
    el.append(this.rows, foot);
    this.clock = 0;
  }

  /** @param {PastFailure[]} past @param {number} clock */
  update(past, clock) {
    this.past = past;
    this.clock = clock;
    const seen = past.slice(0, this.most);
    this.older.hidden = seen.length === past.length;
    setText(this.older, `${past.length - seen.length} older`);
    const ids = new Set(seen.map(({ id }) => id));
    for (const [id, { row }] of this.shown) {
      if (ids.has(id)) continue;
      row.remove();
      this.shown.delete(id);
    }
    seen.forEach((one, place) => {
      const { row, age } = this.shown.get(one.id) ?? this.add(one);
      if (this.rows.children[place] !== row)
        this.rows.insertBefore(row, this.rows.children[place] ?? null);
      setText(age, `${dayText(one.came)}, ${ageText(clock - one.at)} ago`);
    });
  }

  /** @param {PastFailure} past @returns {Shown} */
  add(past) {
    const row = element('div', 'failure');
    row.setAttribute('role', 'listitem');
    const head = button('', 'show the traceback and the last lines', () => {
      const more = tellMore(row, () => this.events.ask(past.id));
      head.setAttribute('aria-expanded', String(more));
    });
    head.className = 'mnb-failure-head';
    head.setAttribute('aria-expanded', 'false');
    const who = ranksText(past);
    const age = element('span', 'age');
    const text = element('span', 'failure-text');
    text.append(element('span', 'headline', cutText(past.headline, 300)));
    head.append(element('span', 'was', '↺'), element('span', 'failure-ranks', who), age, text);
    const gone = button('×', `dismiss what failed on ${who}, in every page`, () => {
      gone.disabled = true;
      this.events.dismiss(past.id);
    });
    gone.setAttribute('aria-label', gone.title);
    gone.className = 'mnb-dismiss';
    const line = element('div', 'past-head');
    line.append(head, gone);
    row.append(line, this.aside(past));
    const shown = { row, age, past };
    this.shown.set(past.id, shown);
    return shown;
  }

  /** Where it was, with a way to the cell, and what became of it. @param {PastFailure} past */
  aside(past) {
    const aside = element('div', 'past-aside');
    const place = placeText(past);
    const number = cellNumber(place);
    if (number !== null) {
      const link = button(place, 'go to this cell', () => this.events.onJump(number));
      link.className = 'mnb-link';
      aside.append(link);
    } else if (place) aside.append(element('span', '', place));
    aside.append(element('span', '', cutText(past.became, 200)));
    return aside;
  }
}
