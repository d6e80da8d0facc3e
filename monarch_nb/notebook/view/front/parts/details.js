// @ts-check
// All about the ranks that are selected, and what can be done with them. Rule of the file: what a rank wrote is only ever text.

import { cutText, runsText } from '../data/protocol.js';
import { cellNumber, coordsText, isDead, usageTexts, stateText, takenText, whoText } from '../data/words.js';
import { drawMark } from '../grid/cells.js';
import { button, carefulButton, copyText, textBlock } from '../ui/controls.js';
import { element, setText, sized } from '../ui/page.js';
import { flame } from './flame.js';

/**
 * @typedef {import("../data/model.js").Mesh} Mesh
 * @typedef {import("../data/connection.js").Connection} Connection
 * @typedef {{rank: number, actors?: {name: string, cls: string, calls: number, failed: number, queue: number, current: string | null}[], error?: {headline: string, text: string, what: string, at: number} | null, lines?: string[], host?: string}} RankAnswer
 * @typedef {object} DetailEvents
 * @property {Connection} connection
 * @property {(number: number) => void} onJump
 * @property {(mesh: string, ranks: string) => void} onLogs
 * @property {(rank: number, failed: boolean) => void} onDebug opens a debugger's prompt
 * @property {(promise: Promise<{said: string}>) => void} tell shows what an action has said
 * @property {(text: string) => void} say
 * @property {(rank: number) => boolean} isTold whether its traceback is shown elsewhere
 */

const AGAIN_MS = 2000;
const AT_END_PX = 4;
const FACTS = ['runs', 'why', 'state', 'GPU', 'CPU', 'queue', 'calls', 'host', 'pid'];

/** The part of the view about the selected ranks. */
export class Details {
  /** @param {HTMLElement} el @param {DetailEvents} events @param {import("../ui/page.js").Theme} theme */
  constructor(el, events, theme) {
    this.events = events;
    this.theme = theme;
    this.head = element('div', 'details-head');
    this.mark = element('canvas', 'mark');
    this.mark.ariaHidden = 'true'; // the state is told below
    this.title = element('strong', 'title');
    this.where = element('span', 'where');
    this.head.append(this.mark, this.title, this.where);
    this.buttons = element('div', 'buttons');
    this.facts = element('dl', 'facts');
    /** @type {Map<string, HTMLElement>} */
    this.values = new Map();
    this.more = element('div', 'more');
    this.stack = element('div', 'more');
    this.taken = element('div', 'note');
    /** When the stack was. @type {Date | null} */
    this.takenAt = null;
    el.append(this.head, this.buttons, this.facts, this.stack, this.more);
    /** @type {Mesh | null} */
    this.mesh = null;
    /** @type {number[]} */
    this.ranks = [];
    /** @type {RankAnswer | null} */
    this.answer = null;
    this.asked = 0;
    /** Show the buttons that mean something now. @type {(() => void)[]} */
    this.offers = [];
    this.shown = '';
    for (const name of FACTS) this.addFact(name);
  }

  /** @param {string} name */
  addFact(name) {
    const value = element('dd', 'fact');
    this.values.set(name, value);
    this.facts.append(element('dt', '', name), value);
  }

  /** @param {Mesh | null} mesh @param {number[]} ranks */
  show(mesh, ranks) {
    const same = mesh?.name === this.mesh?.name && runsText(ranks) === runsText(this.ranks);
    this.mesh = mesh;
    this.ranks = ranks;
    if (same) return this.update();
    this.answer = null;
    this.shown = '';
    this.more.replaceChildren();
    this.stack.replaceChildren();
    this.buttons.replaceChildren(...(ranks.length ? this.makeButtons() : []));
    this.facts.hidden = ranks.length !== 1;
    this.update();
    this.ask();
  }

  /** What the model knows; cheap. */
  update() {
    const { mesh, ranks, where } = this;
    if (!mesh || !ranks.length) return;
    for (const show of this.offers) show();
    if (this.takenAt) setText(this.taken, takenText(this.takenAt, Date.now()));
    const [rank] = ranks;
    this.drawHead(rank);
    if (ranks.length > 1) {
      setText(this.title, `${ranks.length} ranks`);
      setText(where, `${runsText(ranks)}: ${mesh.summary(ranks).split(': ')[1]}`);
      return;
    }
    setText(this.title, `rank ${rank}`);
    setText(where, coordsText(mesh, rank));
    this.updateFacts(mesh, rank);
  }

  /** @param {number} rank */
  drawHead(rank) {
    const one = this.ranks.length === 1;
    this.mark.hidden = !one;
    if (!one || !this.mesh) return;
    const context = sized(this.mark, 14, 14);
    context.clearRect(0, 0, 14, 14);
    drawMark(context, this.theme, this.mesh.state(rank), { x: 0, y: 0, width: 14, height: 14 });
  }

  /** @param {Mesh} mesh @param {number} rank */
  updateFacts(mesh, rank) {
    const { model } = this.events.connection;
    const { queue, calls, failed } = mesh.usage(rank);
    const usage = usageTexts(mesh, rank);
    const of = (/** @type {string} */ name) =>
      usage.find(text => text.startsWith(name))?.slice(name.length + 1) ?? '';
    const host = model.hosts[mesh.host(rank)];
    /** @type {Record<string, string>} */
    const facts = {
      why: cutText(mesh.detail(rank), 600),
      state: stateText(mesh, rank, model.clock),
      GPU: of('GPU'),
      CPU: of('CPU'),
      queue: queue > 0 ? `${queue} waiting` : '',
      calls: isNaN(calls) ? '' : `${calls}${failed > 0 ? `, ${failed} failed` : ''}`,
      host: host ? `${host.name}${host.ended ? ` (${host.ended})` : ''}` : '',
      pid: `${mesh.pid(rank) ?? ''}`
    };
    for (const [name, text] of Object.entries(facts)) this.setFact(name, text);
    this.setRuns(cutText(mesh.what(rank), 300));
  }

  /** @param {string} name @param {string} text */
  setFact(name, text) {
    const value = /** @type {HTMLElement} */ (this.values.get(name));
    setText(value, text);
    value.hidden = /** @type {HTMLElement} */ (value.previousElementSibling).hidden = !text;
  }

  /** What it runs, with a way to the notebook's cell. @param {string} text */
  setRuns(text) {
    const value = /** @type {HTMLElement} */ (this.values.get('runs'));
    if (value.textContent === text && value.hidden === !text) return;
    this.setFact('runs', text);
    const number = cellNumber(text);
    if (number === null) return;
    const link = button(text, 'go to this cell', () => this.events.onJump(number));
    link.className = 'mnb-link';
    value.replaceChildren(link);
  }

  /** The kernel may know more: a question, at most one in two seconds. */
  changed() {
    if (performance.now() - this.asked > AGAIN_MS) this.ask();
  }

  async ask() {
    const { mesh, ranks, events } = this;
    if (!mesh || ranks.length !== 1) return;
    this.asked = performance.now();
    try {
      const answer = await events.connection.ask('rank', { mesh: mesh.name, rank: ranks[0] });
      if (this.ranks !== ranks && this.ranks[0] !== ranks[0]) return;
      this.showAnswer(answer);
    } catch (error) {
      if (this.ranks === ranks && !this.shown) {
        this.more.replaceChildren(element('div', 'note', /** @type {Error} */ (error).message));
      }
    }
  }

  /** @param {RankAnswer} answer */
  showAnswer(answer) {
    this.answer = answer;
    const { actors, error, lines } = answer;
    const shown = JSON.stringify([actors, error, lines]);
    if (shown === this.shown) return;
    this.shown = shown;
    const open = (/** @type {string} */ title, /** @type {boolean} */ otherwise) =>
      [...this.more.querySelectorAll('details')].find(el => el.dataset.title === title)?.open ??
      otherwise;
    /** @type {HTMLElement[]} */
    const parts = [];
    if (actors?.length) parts.push(actorTable(actors));
    if (error) {
      const isOpen = open('error', !this.events.isTold(answer.rank));
      parts.push(titled('error', textBlock(cutText(error.headline, 200), error.text, isOpen)));
    }
    if (lines?.length) {
      const text = lines.map(line => cutText(line, 2000)).join('\n');
      parts.push(titled('output', textBlock('last output', text, open('output', true))));
    }
    const before = this.lastLines;
    const wasAtEnd =
      !before || before.scrollTop + before.clientHeight >= before.scrollHeight - AT_END_PX;
    const top = before?.scrollTop ?? 0;
    this.more.replaceChildren(...parts);
    const after = this.lastLines;
    if (after) after.scrollTop = wasAtEnd ? after.scrollHeight : top;
  }

  /** The end of it is the news. */
  get lastLines() {
    return this.more.querySelector('[data-title=output] pre');
  }

  makeButtons() {
    const { mesh, ranks, events } = this;
    const name = mesh?.name ?? '';
    const text = runsText(ranks);
    const one = ranks.length === 1;
    const who = one ? `rank ${text}` : `${ranks.length} ranks`;
    const act = (/** @type {string} */ what) => () =>
      events.tell(events.connection.do(what, { mesh: name, ranks: text }));
    const careful = (/** @type {string} */ what, /** @type {string} */ title) => {
      const question = `${what[0].toUpperCase()}${what.slice(1)} ${who}?`;
      return carefulButton(what, title, () => question, act(what), events.say);
    };
    /** @param {string} text @param {string} title @param {string} state */
    const prompt = (text, title, state) => {
      const it = (/** @type {number} */ rank) => this.mesh?.state(rank) === state;
      const el = button(text, title, () =>
        events.onDebug(ranks.find(it) ?? ranks[0], state === 'failed')
      );
      this.offers.push(() => (el.hidden = !ranks.some(it)));
      return el;
    };
    /** @param {HTMLElement} el @param {boolean} [dead] whether it is for those too that have exited */
    const offer = (el, dead = false) => {
      const isLost = (/** @type {number} */ rank) => isDead(this.mesh?.state(rank) ?? '');
      const isOver = () => this.mesh?.ended || (!dead && ranks.every(isLost));
      this.offers.push(() => (el.hidden = Boolean(isOver())));
      return el;
    };
    this.offers = [];
    return [
      prompt('debug', 'the prompt of the rank that is stopped', 'paused'),
      prompt('post-mortem', 'a prompt in the frames that failed', 'failed'),
      offer(button('interrupt', `interrupt what ${who} run${one ? 's' : ''}`, act('interrupt'))),
      offer(
        button('stack', `where ${who} ${one ? 'is' : 'are'} now`, () =>
          this.showStacks(name, text)
        )
      ),
      button('logs', `the output of ${who}`, () => events.onLogs(name, text)),
      button('copy', 'copy what is told here', () => copyText(this.text())),
      offer(careful('restart', `${one ? 'a new process' : 'new processes'} for ${who}`), true),
      offer(careful('kill', `end the process${one ? '' : 'es'} of ${who}`))
    ];
  }

  /** @param {string} mesh @param {string} ranks */
  async showStacks(mesh, ranks) {
    this.stack.replaceChildren(element('div', 'note', 'asking…'));
    try {
      const { stacks, silent, tree } = await this.events.connection.ask('stacks', { mesh, ranks });
      const blocks = stacks.map((/** @type {{ranks: string, text: string}} */ stack) =>
        textBlock(`stack of ${whoText(stack.ranks)}`, stack.text, stacks.length === 1)
      );
      if (tree) blocks.unshift(flame(tree));
      if (silent) blocks.push(element('div', 'note', `no answer from ${whoText(silent)}`));
      this.takenAt = new Date();
      this.stack.replaceChildren(this.taken, ...blocks);
      this.update();
    } catch (error) {
      this.stack.replaceChildren(element('div', 'note', /** @type {Error} */ (error).message));
    }
  }

  /** All that is shown, as text. */
  text() {
    const facts = [...this.values]
      .filter(([, el]) => !el.hidden && this.ranks.length === 1)
      .map(([name, el]) => `${name}: ${el.textContent}`);
    const blocks = [...this.stack.querySelectorAll('details'), ...this.more.children];
    const texts = blocks.map(el => (el.querySelector('pre') ?? el).textContent ?? '');
    return [`${this.title.textContent}, ${this.where.textContent}`, ...facts, ...texts].join('\n');
  }

  /** @param {import("../ui/page.js").Theme} theme */
  setTheme(theme) {
    this.theme = theme;
    this.update();
  }
}

/** @param {string} title @param {HTMLElement} el */
function titled(title, el) {
  el.dataset.title = title;
  return el;
}

/** @param {NonNullable<RankAnswer["actors"]>} actors */
function actorTable(actors) {
  const table = element('table', 'actors');
  for (const { name, cls, calls, failed, queue, current } of actors.slice(0, 100)) {
    const row = table.insertRow();
    const counts = [
      `${calls} done`,
      failed ? `${failed} failed` : '',
      queue ? `${queue} queued` : ''
    ];
    const head = element('th', '', cutText(name, 80));
    head.scope = 'row';
    row.append(head);
    for (const text of [cls, current ?? '', counts.filter(Boolean).join(', ')]) {
      row.append(element('td', '', cutText(text, 80)));
    }
  }
  return table;
}
