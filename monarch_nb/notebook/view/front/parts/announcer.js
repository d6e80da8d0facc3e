// @ts-check
// What has become of ranks, for those who hear the page. Rule of the file: one sentence, and none soon after another, however many views there are of a mesh.

import { runsText } from '../data/protocol.js';
import { markOf, stateNames, whoText } from '../data/words.js';

const PAUSE_MS = 5000;
const GATHER_MS = 300; // ranks seldom fail alone
const CONCERNS = ['failed', 'exited', 'unreachable', 'silent', 'paused'];

/** What the page has said last, whichever view it was. */
const lastSaid = { text: '', at: -Infinity };

/**
 * "rank 2 failed, ranks 4-7 idle": who needs a look now, and who needs none any more; "" if that is nobody.
 * @param {readonly string[]} before by rank
 * @param {readonly string[]} now
 * @param {readonly number[]} ranks that are shown
 */
export function changesText(before, now, ranks) {
  const changed = ranks.filter(
    rank =>
      before[rank] !== now[rank] && [before[rank], now[rank]].some(state => CONCERNS.includes(state))
  );
  return [...new Set([...CONCERNS, ...stateNames()])]
    .map(state => ({ state, who: changed.filter(rank => now[rank] === state) }))
    .filter(({ who }) => who.length)
    .map(({ state, who }) => `${whoText(runsText(who))} ${markOf(state).word}`)
    .join(', ');
}

/** Of one view. */
export class Announcer {
  /** @param {{say(text: string): void, isSeen(): boolean}} events what is said in a view that nobody sees is not heard */
  constructor(events) {
    this.events = events;
    /** @type {import("../data/model.js").Mesh | null} */
    this.mesh = null;
    /** @type {readonly number[]} */
    this.ranks = [];
    /** @type {string[]} */
    this.states = [];
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  /** From now on; how a mesh is at first is no news. @param {import("../data/model.js").Mesh} mesh @param {readonly number[]} ranks */
  follow(mesh, ranks) {
    const isKnown = this.mesh?.name === mesh.name && this.states.length === mesh.states.length;
    this.mesh = mesh;
    this.ranks = ranks;
    if (isKnown) this.look();
    else this.states = [...mesh.states];
  }

  /** Ranks have changed. */
  look() {
    if (this.timer !== undefined || !this.news()) return;
    const rest = lastSaid.at + PAUSE_MS - performance.now();
    this.timer = setTimeout(() => this.tell(), Math.max(GATHER_MS, rest));
  }

  news() {
    return this.mesh ? changesText(this.states, this.mesh.states, this.ranks) : '';
  }

  tell() {
    this.timer = undefined;
    const news = this.news();
    if (!news || !this.mesh) return;
    this.states = [...this.mesh.states];
    const text = `${this.mesh.name}: ${news}`;
    const at = performance.now();
    if (!this.events.isSeen() || (text === lastSaid.text && at - lastSaid.at < PAUSE_MS)) return;
    Object.assign(lastSaid, { text, at });
    this.events.say(text);
  }

  dispose() {
    clearTimeout(this.timer);
  }
}
