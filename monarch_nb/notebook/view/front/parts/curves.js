// @ts-check
// All curves of a mesh, side by side where there is room; which runs are shown, and how smooth.

import { cutText } from '../data/protocol.js';
import { element, setText } from '../ui/page.js';
import { Plot, swatchOf } from './plot.js';

/** @typedef {import("../data/curves.js").Series} Series */

export class Curves {
  /** @param {HTMLElement} el @param {import("../ui/page.js").Theme} theme @param {(what: "curve" | "metrics", args: {name: string, rank?: number}) => Promise<any>} ask */
  constructor(el, theme, ask) {
    this.el = el;
    this.theme = theme;
    this.ask = ask;
    /** @type {Map<string, Plot>} */
    this.plots = new Map();
    /** @type {Map<string, Series[]>} */
    this.series = new Map();
    /** Runs that somebody does not want to see. @type {Set<number>} */
    this.hidden = new Set();
    this.rank = -1;
    this.smoothing = element('input', '');
    this.legend = element('div', 'legend');
    this.legend.setAttribute('role', 'group');
    this.legend.setAttribute('aria-label', 'runs that are shown');
    const head = element('div', 'curves-head');
    head.append(this.legend, this.slider());
    el.append(head);
  }

  slider() {
    const label = element('label', 'smoothing', 'smoothing ');
    const note = element('span', 'value', '0');
    Object.assign(this.smoothing, { type: 'range', min: '0', max: '0.99', step: '0.01', value: '0' });
    this.smoothing.addEventListener('input', () => {
      setText(note, `${Number(this.smoothing.value)}`);
      this.showAll();
    });
    label.append(this.smoothing, note);
    return label;
  }

  /** @param {import("../data/model.js").Mesh} mesh @param {Iterable<string>} changed */
  update(mesh, changed) {
    for (const [name, plot] of this.plots) {
      if (mesh.curves.has(name)) continue;
      plot.dispose();
      this.plots.delete(name);
      this.series.delete(name);
    }
    for (const name of changed) {
      if (!mesh.curves.has(name)) continue;
      const table = () => this.ask('metrics', { name });
      const plot = this.plots.get(name) ?? new Plot(this.el, name, this.theme, table);
      this.plots.set(name, plot);
      this.series.set(name, seriesOf(mesh, name));
      this.show(name, plot);
      if (this.rank >= 0) this.fetch(name, plot);
    }
    this.showLegend();
  }

  showAll() {
    for (const [name, plot] of this.plots) this.show(name, plot);
  }

  /** @param {string} name @param {Plot} plot */
  show(name, plot) {
    const shown = (this.series.get(name) ?? []).filter(({ run }) => !this.hidden.has(run));
    plot.show(shown, Number(this.smoothing.value));
  }

  /** A button for each run, where there are several. */
  showLegend() {
    /** @type {Map<number, Series>} */
    const runs = new Map();
    for (const one of [...this.series.values()].flat()) {
      if (runs.get(one.run)?.earlier ?? true) runs.set(one.run, one);
    }
    const several = [...runs.values()].sort((a, b) => b.run - a.run);
    const key = JSON.stringify([this.theme, several.map(({ run, name, earlier }) => [run, name, earlier])]);
    if (key === this.told) return;
    this.told = key;
    this.legend.hidden = several.length < 2;
    this.legend.replaceChildren(...several.map(one => this.runButton(one)));
  }

  told = '';

  /** @param {Series} series */
  runButton(series) {
    const el = element('button', 'run');
    el.type = 'button';
    el.title = 'show or hide this run';
    el.append(swatchOf(series, this.theme), cutText(series.name, 40));
    const tell = () => el.setAttribute('aria-pressed', `${!this.hidden.has(series.run)}`);
    el.addEventListener('click', () => {
      if (!this.hidden.delete(series.run)) this.hidden.add(series.run);
      tell();
      this.showAll();
    });
    tell();
    return el;
  }

  /** The rank whose own line is shown, too. @param {number} rank -1: none */
  select(rank) {
    if (rank === this.rank) return;
    this.rank = rank;
    for (const [name, plot] of this.plots) {
      plot.showRank(-1, []);
      if (rank >= 0) this.fetch(name, plot);
    }
  }

  /** @param {string} name @param {Plot} plot */
  async fetch(name, plot) {
    const rank = this.rank;
    const busy = this.fetching.has(name);
    if (busy) return;
    this.fetching.add(name);
    try {
      const { points } = await this.ask('curve', { name, rank });
      if (rank === this.rank) plot.showRank(rank, points);
    } catch {
      plot.showRank(-1, []); // the mean and the band tell enough
    } finally {
      this.fetching.delete(name);
    }
    if (this.rank >= 0 && rank !== this.rank) this.fetch(name, plot);
  }

  /** @type {Set<string>} */
  fetching = new Set();

  resize() {
    for (const plot of this.plots.values()) plot.painter.ask();
  }

  /** @param {import("../ui/page.js").Theme} theme */
  setTheme(theme) {
    this.theme = theme;
    this.showLegend();
    for (const plot of this.plots.values()) {
      plot.theme = theme;
      plot.painter.ask();
    }
  }

  dispose() {
    for (const plot of this.plots.values()) plot.dispose();
    this.plots.clear();
  }
}

/** The curves of a name, the newest run last. @param {import("../data/model.js").Mesh} mesh @param {string} name @returns {Series[]} */
function seriesOf(mesh, name) {
  /** @type {Series[]} */
  const found = [];
  let now = { run: 0, name: '' };
  for (const [run, told] of [...mesh.runs].sort(([a], [b]) => a - b)) {
    if (told.current?.includes(name)) now = { run, name: told.name };
    const points = Object.hasOwn(told.curves, name) ? told.curves[name] : undefined;
    if (points) found.push({ run, name: told.name, points, earlier: true });
  }
  return [...found, { ...now, points: mesh.curves.get(name) ?? [], earlier: false }];
}
