// @ts-check
// A mesh, whole: header, grid, details, failures, timeline, curves. Rule of the file: it passes on what has changed, and draws nothing itself.

import { stateOf } from './data/keeping.js';
import { runs, runsText } from './data/protocol.js';
import { isDead } from './data/words.js';
import { Grid } from './grid/grid.js';
import { Announcer } from './parts/announcer.js';
import { Details } from './parts/details.js';
import { Failures, failureText } from './parts/failures.js';
import { Header } from './parts/header.js';
import { History } from './parts/history.js';
import { Curves } from './parts/curves.js';
import { Prompt } from './parts/prompt.js';
import { Strip } from './parts/strip.js';
import { Section } from './ui/controls.js';
import { composed, element, onThemeChange, readTheme, setText, watchSight } from './ui/page.js';

/**
 * @typedef {import("./data/connection.js").Connection} Connection
 * @typedef {import("./data/model.js").Mesh} Mesh
 * @typedef {object} ViewOptions
 * @property {string} mesh its name; "" is the first there is
 * @property {number[] | null} [ranks] a slice, null: all
 * @property {boolean} [compact] header and grid only, and details of what is selected
 * @property {(number: number) => void} onJump go to the notebook's cell of that number
 * @property {(mesh: string, ranks: string) => void} onLogs show the output of these ranks
 * @property {(ranks: number[]) => void} [onSelect] hears which ranks are selected
 * @property {import("./parts/header.js").Offer[]} [offers] more buttons of the mesh
 */
/**
 * What is to be kept without a kernel: a message, and the same for readers without this view.
 * @typedef {{state: import("./data/protocol.js").StateMessage, summary: string, failures: string[], picture: HTMLCanvasElement}} Kept
 */

const WIDE = 760;

/**
 * Show a mesh. The connection is opened and closed by whoever made it.
 * @param {HTMLElement} el
 * @param {Connection} connection
 * @param {ViewOptions} options
 * @returns {{dispose(): void, select(ranks: Iterable<number>): void, say(text: string): void, keep(): Kept | null}}
 */
export function mountMesh(el, connection, options) {
  const view = new View(el, connection, options);
  return {
    dispose: () => view.dispose(),
    select: ranks => view.select(new Set(ranks)),
    say: text => view.header.say(text),
    keep: () => view.keep()
  };
}

class View {
  /** @param {HTMLElement} el @param {Connection} connection @param {ViewOptions} options */
  constructor(el, connection, options) {
    this.connection = connection;
    this.options = options;
    this.full = !options.compact;
    /** @type {Mesh | null} */
    this.mesh = null;
    /** @type {number[]} */
    this.ranks = [];
    /** @type {Set<number>} */
    this.selected = new Set();
    this.width = 0;
    this.root = element('div', 'root');
    el.append(this.root);
    this.coloured = this.root.isConnected;
    const { model } = connection;
    const theme = (this.theme = readTheme(this.root));
    const events = {
      onHover: (/** @type {number} */ rank) => this.hover(rank),
      onSelect: (/** @type {Set<number>} */ ranks) => this.select(ranks),
      onOpen: () => this.openDetails(),
      clock: () => model.clock
    };
    const asking = (/** @type {string} */ what, /** @type {object} */ args) =>
      connection.ask(what, { mesh: this.mesh?.name ?? '', ...args });
    const { onJump, onLogs, offers = [] } = options;
    this.header = new Header(this.root, { act: what => this.act(what), onJump, offers });
    const body = element('div', 'body');
    const [main, side, picture] = [
      element('div', 'main'),
      element('div', 'side'),
      element('div', 'grid')
    ];
    this.hint = element('div', 'hint', 'a click on a rank tells more; a drag selects several');
    main.append(picture);
    side.append(this.hint);
    body.append(main, side);
    const live = element('div', 'unseen');
    live.setAttribute('role', 'status');
    this.root.append(body, live);
    this.announcer = new Announcer({
      say: text => setText(live, text),
      isSeen: () => this.root.clientWidth > 0
    });
    this.grid = new Grid(picture, events, theme);
    this.failures = new Section(side, 'failures', false);
    this.history = new Section(side, 'history', false);
    this.details = new Section(side, 'details', false);
    this.details.box.addEventListener('keydown', event => this.leaveDetails(event));
    this.debugger = new Section(side, 'debugger', false);
    /** @type {Prompt | null} */
    this.prompt = null;
    this.timeline = new Section(main, 'timeline', false);
    this.curves = new Section(main, 'curves', false);
    this.strip = new Strip(this.timeline.body, events, theme);
    this.plots = new Curves(this.curves.body, theme, asking);
    this.failureList = new Failures(this.failures.body, {
      onSelect: events.onSelect,
      ask: id => asking('failure', { failure: id })
    });
    const tell = (/** @type {Promise<{said: string}>} */ promise) => this.header.tell(promise);
    this.historyList = new History(this.history.body, {
      ask: id => asking('failure', { failure: id }),
      dismiss: id => tell(connection.do('dismiss', { mesh: this.mesh?.name ?? '', past: id })),
      onJump
    });
    const say = (/** @type {string} */ text) => this.header.say(text);
    const onDebug = (/** @type {number} */ rank, /** @type {boolean} */ failed) =>
      this.debug(rank, failed);
    const isTold = (/** @type {number} */ rank) => this.failureList.isOpen(rank);
    const wishes = { connection, onJump, onLogs, onDebug, tell, say, isTold };
    this.rankDetails = new Details(this.details.body, wishes, theme);
    this.undo = this.follow();
    this.adopt();
    this.showState();
  }

  /** Hear of everything that matters. @returns {(() => void)[]} what undoes it */
  follow() {
    const { connection } = this;
    return [
      connection.model.onChange(change => this.update(change)),
      connection.onState(() => this.showState()),
      onThemeChange(() => this.readTheme()),
      watchSight(this.root, {
        seen: () => connection.pace(this, connection.period),
        hidden: () => connection.pace(this, null),
        tick: () => this.tick(),
        resized: () => this.resize()
      })
    ];
  }

  /** Take the mesh from the model, if it is there, and draw all of it. */
  adopt() {
    const { meshes } = this.connection.model;
    const mesh = meshes.get(this.options.mesh || (meshes.keys().next().value ?? ''));
    if (!mesh) return this.describe();
    this.mesh = mesh;
    this.grid.show(mesh, this.options.ranks ?? null);
    this.ranks = this.grid.frame.ranks;
    this.timeline.box.hidden = !this.full;
    this.announcer.follow(mesh, this.ranks);
    this.strip.show(mesh, this.ranks);
    this.showCurves(mesh.curves.keys());
    this.select(this.selected);
    this.tick();
    this.describe();
  }

  /** @param {import("./data/model.js").Change} change */
  update(change) {
    const { mesh } = this;
    const told = change.meshes.get(mesh?.name ?? this.options.mesh);
    if (change.all || told?.fresh || !mesh) return this.adopt();
    if (!told) return this.describe();
    this.grid.refresh(told.usage ? this.ranks : told.ranks);
    if (told.ranks.size) this.announcer.look();
    if (told.strip) this.strip.refresh();
    if (told.curves.size) this.showCurves(told.curves);
    if (told.failures) this.showFailures();
    this.rankDetails.update();
    if (told.usage || [...told.ranks].some(rank => this.selected.has(rank))) {
      this.rankDetails.changed();
    }
    this.describe();
  }

  /** @param {Iterable<string>} changed */
  showCurves(changed) {
    if (!this.mesh || !this.full) return;
    this.curves.box.hidden = !this.mesh.curves.size;
    this.plots.update(this.mesh, changed);
  }

  showFailures() {
    const failures = (this.mesh?.failures ?? []).filter(failure => this.concerns(failure));
    this.failures.box.hidden = !this.full || !failures.length;
    setText(this.failures.note, failures.length > 1 ? `${failures.length}` : '');
    this.failureList.update(failures, this.connection.model.clock);
    const past = (this.mesh?.past ?? []).filter(failure => this.concerns(failure));
    this.history.box.hidden = !this.full || !past.length;
    setText(this.history.note, past.length > 1 ? `${past.length}` : '');
    this.historyList.update(past, this.connection.model.clock);
  }

  /** Whether ranks that are shown here have failed so. @param {{ranks: string}} failure */
  concerns({ ranks }) {
    return !this.options.ranks || runs(ranks).some(rank => this.grid.places.has(rank));
  }

  /** A second has passed. */
  tick() {
    this.grid.tick();
    this.rankDetails.update();
    this.showFailures();
  }

  describe() {
    const { mesh, connection, options } = this;
    const { meshes, cell } = connection.model;
    const here = mesh !== null && meshes.get(mesh.name) === mesh && !mesh.ended;
    const dead = this.ranks.some(rank => isDead(mesh?.state(rank) ?? ''));
    const name = mesh?.name ?? options.mesh;
    this.header.describe(name, this.summary(here), { here, dead });
    this.header.running(here && cell ? cell.number : null);
    this.root.classList.toggle('mnb-gone', mesh !== null && !here);
  }

  /** @param {boolean} here */
  summary(here) {
    if (this.mesh)
      return here ? this.mesh.summary(this.ranks) : this.mesh.ended || 'this mesh is gone';
    if (this.connection.model.n < 0) return 'waiting for the kernel…';
    return this.options.mesh ? 'there is no such mesh' : 'no mesh is up; %mesh up makes one';
  }

  showState() {
    const { state, why } = this.connection;
    const lost = state === 'lost';
    const trouble = this.root.classList.toggle('mnb-lost', lost) || why !== '';
    if (trouble) this.header.say(why || 'connection lost: trying again', true);
    else if (this.troubled) this.header.say('');
    this.troubled = trouble;
    this.describe();
  }

  troubled = false;

  /** @param {number} rank */
  hover(rank) {
    this.grid.hover(rank);
    this.strip.hover(rank);
  }

  /** @param {Set<number>} ranks */
  select(ranks) {
    const sorted = this.ranks.filter(rank => ranks.has(rank));
    this.selected = new Set(sorted);
    this.grid.select(this.selected);
    this.strip.select(this.selected);
    this.plots.select(sorted.length === 1 ? sorted[0] : -1);
    this.details.box.hidden = !sorted.length;
    this.hint.hidden = sorted.length > 0;
    this.rankDetails.show(this.mesh, sorted);
    this.options.onSelect?.(sorted);
  }

  /** The keyboard goes to what is told of the ranks that are selected. */
  openDetails() {
    this.details.box.open = true;
    this.details.head.focus();
  }

  /** Back to the picture. @param {KeyboardEvent} event */
  leaveDetails(event) {
    if (event.key !== 'Escape') return;
    event.stopPropagation();
    this.grid.canvas.focus();
    this.select(new Set());
  }

  /** The prompt of a rank, one in a view. @param {number} rank @param {boolean} failed */
  debug(rank, failed) {
    this.endPrompt();
    const { box, body } = this.debugger;
    box.hidden = false;
    box.open = true;
    const wish = { mesh: this.mesh?.name ?? '', rank, failed };
    this.prompt = new Prompt(body, this.connection, wish, () => this.endPrompt());
  }

  endPrompt() {
    this.prompt?.close();
    this.prompt = null;
    this.debugger.box.hidden = true;
  }

  /** @param {"interrupt" | "heal" | "down"} what */
  act(what) {
    const mesh = this.mesh?.name ?? '';
    const ranks = runsText(this.ranks);
    const args = what === 'interrupt' ? { mesh, ranks } : { mesh };
    this.header.tell(this.connection.do(what, args));
  }

  /** Also when it comes into the page, or back: only there it has colours. */
  resize() {
    if (!this.coloured) this.readTheme();
    const width = this.root.clientWidth;
    this.root.classList.toggle('mnb-wide', this.full && width >= WIDE);
    if (width && width !== this.width) this.header.release();
    this.width = width;
    this.grid.resize();
    this.strip.refresh();
    this.plots.resize();
  }

  readTheme() {
    this.coloured = this.root.isConnected;
    if (!this.coloured) return;
    const theme = (this.theme = readTheme(this.root));
    for (const part of [this.grid, this.strip, this.plots, this.rankDetails]) part.setTheme(theme);
  }

  /** @returns {Kept | null} null: there is nothing to be seen */
  keep() {
    const { mesh, connection, root } = this;
    if (!mesh || !root.clientWidth) return null;
    const failures = mesh.failures.filter(failure => this.concerns(failure));
    return {
      state: stateOf(connection.model, mesh),
      summary: mesh.summary(this.ranks),
      failures: failures.map(failureText),
      picture: composed([...root.querySelectorAll('canvas')], root.clientWidth, this.theme)
    };
  }

  dispose() {
    for (const undo of this.undo) undo();
    this.endPrompt();
    this.connection.pace(this, undefined);
    for (const part of [this.grid, this.strip, this.plots, this.announcer]) part.dispose();
    this.root.remove();
  }
}
