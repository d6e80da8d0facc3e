// @ts-check
// Curves as small multiples: the mean over ranks, the band from the lowest to the highest, one rank's own line.

import { cutText } from '../data/protocol.js';
import { element, onceAFrame, setText, sized } from '../ui/page.js';

/**
 * Round values within a range, at most `count` or so.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !isFinite(raw)) return isFinite(low) ? [low] : [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find(factor => factor * power >= raw * 0.999) ?? 10);
  /** @type {number[]} */
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i <= count + 2; i++) found.push((first + i) * step || 0);
  return found.filter(value => value <= high + step * 1e-9);
}

/** A number in at most seven or so characters. @param {number} value */
export function numberText(value) {
  if (!isFinite(value)) return isNaN(value) ? '–' : value > 0 ? '∞' : '-∞';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace('e+', 'e');
  return `${Number(value.toPrecision(4))}`;
}

/**
 * The least and the greatest of what is finite; a little apart if they are equal.
 * @param {number[]} values
 * @returns {[number, number] | null}
 */
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return null;
  const apart = low === high ? Math.abs(low) * 0.05 || 1 : 0;
  return [low - apart, high + apart];
}

/**
 * @typedef {import("../data/protocol.js").CurvePoint} CurvePoint
 * @typedef {{edge: number, x(step: number): number, y(value: number): number}} Scales
 */

const HEIGHT = 104;
const EDGE = { right: 6, top: 6, bottom: 16 };

/** @param {number | null | undefined} value */
function known(value) {
  return typeof value === 'number' ? value : NaN;
}

/** One curve. */
export class Plot {
  /** @param {HTMLElement} el @param {string} name @param {import("../ui/page.js").Theme} theme */
  constructor(el, name, theme) {
    this.theme = theme;
    this.box = element('figure', 'plot');
    const head = element('figcaption', 'plot-head');
    this.reading = element('div', 'reading');
    this.value = element('span', 'value');
    head.append(element('span', 'plot-name', cutText(name, 60)), this.value);
    this.canvas = element('canvas', 'canvas');
    this.canvas.setAttribute('role', 'img');
    this.canvas.setAttribute('aria-label', `curve of ${cutText(name, 60)}`);
    this.box.append(head, this.reading, this.canvas);
    el.append(this.box);
    /** @type {CurvePoint[]} */
    this.points = [];
    /** @type {[number, number][]} */
    this.own = [];
    this.rank = -1;
    this.pointer = NaN;
    this.painter = onceAFrame(() => this.paint());
    this.canvas.addEventListener('pointermove', event => this.look(event.offsetX));
    this.canvas.addEventListener('pointerleave', () => this.look(NaN));
  }

  /** @param {CurvePoint[]} points */
  show(points) {
    this.points = points;
    this.painter.ask();
  }

  /** @param {number} rank -1: none @param {[number, number][]} points */
  showRank(rank, points) {
    this.rank = rank;
    this.own = points;
    this.painter.ask();
  }

  /** @param {number} x */
  look(x) {
    this.pointer = x;
    this.painter.ask();
  }

  paint() {
    const { points, canvas, theme } = this;
    const width = this.box.clientWidth;
    if (!width) return;
    const context = sized(canvas, width, HEIGHT);
    context.clearRect(0, 0, width, HEIGHT);
    const values = [
      ...points.flatMap(([, ...rest]) => rest.slice(0, 3)),
      ...this.own.map(([, v]) => v)
    ];
    const [xs, ys] = [extent(points.map(([step]) => step)), extent(values.map(known))];
    this.read(points.length - 1);
    if (!xs || !ys) return;
    context.font = `10px ${theme.font}`;
    const words = ticks(...ys, 3).map(value => context.measureText(numberText(value)).width);
    const scales = scalesOf(xs, ys, Math.max(24, ...words) + 8, width);
    drawAxes(context, theme, scales, xs, ys, width);
    drawBand(context, theme.colours.busy, scales, points);
    const means = points.map(([step, mean]) => /** @type {const} */ ([step, known(mean)]));
    drawLine(context, theme.colours.busy, scales, means);
    const own = this.own.map(([step, value]) => /** @type {const} */ ([step, known(value)]));
    if (own.length) drawLine(context, theme.colours.silent, scales, own);
    this.drawPointer(context, scales);
  }

  /** @param {CanvasRenderingContext2D} context @param {Scales} scales */
  drawPointer(context, scales) {
    if (isNaN(this.pointer) || !this.points.length) return;
    const away = this.points.map(([step]) => Math.abs(scales.x(step) - this.pointer));
    const nearest = away.indexOf(Math.min(...away));
    this.read(nearest);
    const [step, mean] = this.points[nearest];
    const { colours } = this.theme;
    context.fillStyle = colours.dim;
    context.fillRect(scales.x(step), EDGE.top, 1, HEIGHT - EDGE.top - EDGE.bottom);
    context.fillStyle = colours.busy;
    context.beginPath();
    context.arc(scales.x(step), scales.y(known(mean)), 3, 0, 7);
    context.fill();
  }

  /** Say the values at a point. @param {number} index */
  read(index) {
    const point = this.points[index];
    const [step, mean, low, high] = point ?? [];
    setText(this.value, numberText(known(mean)));
    if (!point) return setText(this.reading, 'no values yet');
    const apart = low !== high ? `, ${numberText(known(low))} to ${numberText(known(high))}` : '';
    const own = this.own.find(([at]) => at === step);
    const mine = own ? `, rank ${this.rank}: ${numberText(known(own[1]))}` : '';
    setText(this.reading, `step ${numberText(known(step))}${apart}${mine}`);
  }

  dispose() {
    this.painter.cancel();
    this.box.remove();
  }
}

/** @param {[number, number]} xs @param {[number, number]} ys @param {number} edge @param {number} width @returns {Scales} */
function scalesOf([left, right], [low, high], edge, width) {
  const across = width - edge - EDGE.right;
  const down = HEIGHT - EDGE.top - EDGE.bottom;
  return {
    edge,
    x: step => edge + ((step - left) / (right - left)) * across,
    y: value => EDGE.top + (1 - (value - low) / (high - low)) * down
  };
}

/** @param {CanvasRenderingContext2D} context @param {import("../ui/page.js").Theme} theme @param {Scales} scales @param {[number, number]} xs @param {[number, number]} ys @param {number} width */
function drawAxes(context, { colours }, scales, xs, ys, width) {
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  for (const value of ticks(...ys, 3)) {
    const y = scales.y(value);
    context.fillStyle = colours.line;
    context.fillRect(scales.edge, Math.round(y), width - scales.edge - EDGE.right, 1);
    context.fillStyle = colours.dim;
    context.fillText(numberText(value), scales.edge - 5, y);
  }
  for (const step of ticks(...xs, width / 90)) {
    const text = numberText(step);
    const half = context.measureText(text).width / 2;
    const x = Math.min(scales.x(step), width - half - 1);
    context.textAlign = 'center';
    context.fillText(text, x, HEIGHT - 6);
  }
}

/** @param {CanvasRenderingContext2D} context @param {string} colour @param {Scales} scales @param {CurvePoint[]} points */
function drawBand(context, colour, { x, y }, points) {
  context.fillStyle = colour;
  context.globalAlpha = 0.2;
  for (let i = 1; i < points.length; i++) {
    const [a, , lowA, highA] = points[i - 1];
    const [b, , lowB, highB] = points[i];
    if ([lowA, highA, lowB, highB].some(value => !isFinite(known(value)))) continue;
    context.beginPath();
    context.moveTo(x(a), y(known(lowA)));
    context.lineTo(x(a), y(known(highA)));
    context.lineTo(x(b), y(known(highB)));
    context.lineTo(x(b), y(known(lowB)));
    context.fill();
  }
  context.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} context @param {string} colour @param {Scales} scales @param {(readonly [number, number])[]} points */
function drawLine(context, colour, { x, y }, points) {
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.5;
  context.lineJoin = 'round';
  context.beginPath();
  points.forEach(([step, value], i) => {
    if (!isFinite(value)) return;
    const begins = !isFinite(points[i - 1]?.[1] ?? NaN);
    const alone = begins && !isFinite(points[i + 1]?.[1] ?? NaN);
    if (alone) context.fillRect(x(step) - 1, y(value) - 1, 2.5, 2.5);
    if (begins) context.moveTo(x(step), y(value));
    else context.lineTo(x(step), y(value));
  });
  context.stroke();
}

/** All curves of a mesh, side by side where there is room. */
export class Curves {
  /** @param {HTMLElement} el @param {import("../ui/page.js").Theme} theme @param {(name: string, rank: number) => Promise<{points: [number, number][]}>} ask */
  constructor(el, theme, ask) {
    this.el = el;
    this.theme = theme;
    this.ask = ask;
    /** @type {Map<string, Plot>} */
    this.plots = new Map();
    this.rank = -1;
  }

  /** @param {import("../data/model.js").Mesh} mesh @param {Iterable<string>} changed */
  update(mesh, changed) {
    for (const [name, plot] of this.plots) {
      if (mesh.curves.has(name)) continue;
      plot.dispose();
      this.plots.delete(name);
    }
    for (const name of changed) {
      const plot = this.plots.get(name) ?? new Plot(this.el, name, this.theme);
      this.plots.set(name, plot);
      plot.show(mesh.curves.get(name) ?? []);
      if (this.rank >= 0) this.fetch(name, plot);
    }
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
      const { points } = await this.ask(name, rank);
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
