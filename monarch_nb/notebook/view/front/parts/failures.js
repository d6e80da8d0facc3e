// @ts-check
// Equal exceptions together, the newest first. Rule of the file: all text is text.

import { cutText, runs } from '../data/protocol.js';
import { ageText } from '../data/words.js';
import { button, textBlock } from '../ui/controls.js';
import { element, setText } from '../ui/page.js';

/**
 * @typedef {import("../data/protocol.js").Failure} Failure
 * @typedef {{row: HTMLElement, head: HTMLElement, age: HTMLElement, count: HTMLElement, open: boolean, failure: Failure}} Shown
 */

const FIRST = 4; // the rest are a click away: what is below stays in sight

const MOST_RUNS = 5;

/** "ranks 0-7", "20 ranks 5,18,31,44,57,…", and how often if it was more than once each. @param {Failure} failure */
export function ranksText({ ranks, count }) {
  const parts = ranks.split(',');
  const all = runs(ranks).length;
  const who = parts.length > MOST_RUNS ? `${all} ranks` : all > 1 ? 'ranks' : 'rank';
  const some = parts.length > MOST_RUNS ? [...parts.slice(0, MOST_RUNS), '…'] : parts;
  const often = count > all ? `, ${count} times` : '';
  return `${who} ${cutText(some.join(','), 60)}${often}`;
}

/** Where it was raised, and in what; a cell is not told twice. @param {Failure} failure */
export function placeText({ where, what }) {
  const twice = where.toLowerCase().includes(what.toLowerCase());
  return cutText([where, twice ? '' : what].filter(Boolean).join(', '), 120);
}

/**
 * The traceback below a row and what its rank had written, or no more of it. Whether it is there now.
 * @param {HTMLElement} row
 * @param {() => Promise<{text: string, lines?: string[]}>} ask
 */
export function tellMore(row, ask) {
  const open = row.querySelector('.mnb-more');
  if (open) {
    open.remove();
    return false;
  }
  const more = element('div', 'more');
  const note = element('div', 'note', 'asking…');
  more.append(note);
  row.append(more);
  ask().then(
    ({ text, lines = [] }) => {
      note.remove();
      more.append(textBlock('traceback', text, true));
      if (lines.length) more.append(textBlock('what it had written', lines.join('\n'), false));
    },
    error => setText(note, error.message)
  );
  return true;
}

/** All of it in a line: who, what, where. @param {Failure} failure */
export function failureText(failure) {
  return `${ranksText(failure)}: ${cutText(failure.headline, 300)} (${placeText(failure)})`;
}

/** The list of a mesh's failures. */
export class Failures {
  /** @param {HTMLElement} el @param {{onSelect(ranks: Set<number>): void, ask(id: number | string): Promise<{text: string, lines?: string[]}>}} events */
  constructor(el, events) {
    this.el = el;
    this.events = events;
    /** @type {Map<number | string, Shown>} */
    this.shown = new Map();
    this.most = FIRST;
    this.older = button('', 'show all', () => {
      this.most = Infinity;
      this.update(this.failures, this.clock);
    });
    this.older.className = 'mnb-link';
    el.append(this.older);
    /** @type {Failure[]} */
    this.failures = [];
    this.clock = 0;
  }

  /** @param {Failure[]} failures @param {number} clock */
  update(failures, clock) {
    this.failures = failures;
    const seen = failures.slice(0, this.most);
    this.older.hidden = seen.length === failures.length;
    setText(this.older, `${failures.length - seen.length} older`);
    const ids = new Set(seen.map(({ id }) => id));
    for (const [id, { row }] of this.shown) {
      if (ids.has(id)) continue;
      row.remove();
      this.shown.delete(id);
    }
    seen.forEach((failure, place) => {
      const shown = this.shown.get(failure.id) ?? this.add(failure);
      shown.failure = failure;
      setText(shown.count, ranksText(failure));
      if (this.el.children[place] !== shown.row)
        this.el.insertBefore(shown.row, this.el.children[place] ?? null);
    });
    this.tick(clock);
  }

  /** @param {Failure} failure */
  add(failure) {
    const row = element('div', 'failure');
    const head = button('', 'select these ranks, show the traceback', () => this.toggle(shown));
    head.className = 'mnb-failure-head';
    head.ariaExpanded = 'false';
    const count = element('span', 'failure-ranks');
    const age = element('span', 'age');
    const text = element('span', 'failure-text');
    text.append(
      element('span', 'headline', cutText(failure.headline, 300)),
      element('span', 'where', placeText(failure))
    );
    head.append(element('span', 'cross', '✕'), count, age, text);
    row.append(head);
    /** @type {Shown} */
    const shown = { row, head, age, count, open: false, failure };
    this.shown.set(failure.id, shown);
    return shown;
  }

  /** @param {Shown} shown */
  toggle(shown) {
    const { failure } = shown;
    shown.open = tellMore(shown.row, () => this.events.ask(failure.id));
    shown.head.ariaExpanded = `${shown.open}`;
    if (shown.open) this.events.onSelect(new Set(runs(failure.ranks)));
  }

  /** Whether a traceback of this rank is shown here. @param {number} rank */
  isOpen(rank) {
    return [...this.shown.values()].some(
      ({ open, failure }) => open && runs(failure.ranks).includes(rank)
    );
  }

  /** @param {number} clock */
  tick(clock) {
    this.clock = clock;
    for (const { age, failure } of this.shown.values()) {
      setText(age, `${ageText(clock - failure.at)} ago`);
    }
  }
}
