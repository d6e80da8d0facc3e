// @ts-check
// One measure, drawn over steps: the mean over ranks, the band from the lowest to the highest, one rank's own line, earlier runs.

import {
  csvText,
  extent,
  known,
  logTicks,
  nearest,
  numberText,
  smoothed,
  ticks,
  zoomedSteps
} from '../data/curves.js';
import { cutText } from '../data/protocol.js';
import { button, saveFile } from '../ui/controls.js';
import { element, onceAFrame, setText, sized, takeKeys } from '../ui/page.js';

/**
 * @typedef {import("../data/curves.js").Series} Series
 * @typedef {import("../ui/page.js").Theme} Theme
 * @typedef {{edge: number, xs: [number, number], ys: [number, number], log: boolean, x(step: number): number, y(value: number): number}} Scales
 * @typedef {(readonly [number, number])[]} Line
 */

const HEIGHT = 120;
const EDGE = { right: 6, top: 6, bottom: 16 };
const DRAG = 5; // pixels; less is a click
const EARLIER = ['idle', 'paused', 'collective', 'dead', 'grey'];

/** The colour of a run's line, by name. @param {Series} series */
export function colourOf({ run, earlier }) {
  return earlier ? EARLIER[run % EARLIER.length] : 'busy';
}

/** Its pattern: with the colour, another for each of the ten runs that are kept. @param {Series} series */
function dashOf({ run, earlier }) {
  if (!earlier) return [];
  return run % 2 ? [6, 3] : [1.5, 2.5];
}

/** How its line looks. @param {Series} series @param {Theme} theme */
export function swatchOf(series, theme) {
  const sign = element('span', 'swatch');
  sign.style.color = theme.colours[colourOf(series)];
  sign.style.borderTopStyle = series.earlier ? (series.run % 2 ? 'dashed' : 'dotted') : 'solid';
  return sign;
}

/** One curve. */
export class Plot {
  /** @param {HTMLElement} el @param {string} name @param {Theme} theme @param {() => Promise<{csv: string}>} askTable */
  constructor(el, name, theme, askTable) {
    this.theme = theme;
    this.name = cutText(name, 60);
    this.askTable = askTable;
    this.box = element('figure', 'plot');
    this.all = button('all steps', `show all steps of ${this.name}`, () => this.zoom(null));
    this.log = button('log', `log scale for ${this.name}`, () => this.toggleLog());
    const head = element('figcaption', 'plot-head');
    this.reading = element('div', 'reading');
    this.value = element('span', 'value');
    head.append(element('span', 'plot-name', this.name), this.value);
    this.canvas = element('canvas', 'canvas');
    this.tip = element('div', 'tip');
    this.tip.hidden = true;
    this.area = element('div', 'plot-area');
    this.area.append(this.canvas, this.tip);
    this.box.append(head, this.reading, this.area, this.tools());
    el.append(this.box);
    /** @type {Series[]} */
    this.series = [];
    /** @type {[number, number][]} */
    this.own = [];
    this.rank = -1;
    this.smoothing = 0;
    /** The step that is read. */
    this.at = NaN;
    /** @type {[number, number] | null} */
    this.range = null;
    /** @type {[number, number] | null} */
    this.drag = null;
    /** @type {Scales | null} */
    this.scales = null;
    this.painter = onceAFrame(() => this.paint());
    this.listen();
  }

  tools() {
    const tools = element('div', 'plot-tools');
    this.all.hidden = true;
    this.log.setAttribute('aria-pressed', 'false');
    tools.append(
      this.all,
      this.log,
      button('CSV', `save all kept points of ${this.name} as CSV`, () => this.saveTable()),
      button('PNG', `save the picture of ${this.name} as PNG`, () => this.savePicture())
    );
    for (const one of tools.children) one.setAttribute('aria-label', /** @type {any} */ (one).title);
    return tools;
  }

  listen() {
    const { canvas } = this;
    takeKeys(canvas, 'application', 'curve');
    const keys = 'arrow keys read it, plus and minus zoom, Escape shows all steps';
    canvas.setAttribute('aria-label', `${this.name}; ${keys}`);
    canvas.addEventListener('pointerdown', event => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.drag = [event.offsetX, event.offsetX];
    });
    canvas.addEventListener('pointermove', event => {
      if (this.drag) this.drag = [this.drag[0], event.offsetX];
      this.look(this.stepAt(event.offsetX));
    });
    canvas.addEventListener('pointerup', () => this.drop());
    canvas.addEventListener('pointercancel', () => (this.drag = null));
    canvas.addEventListener('pointerleave', () => this.look(NaN));
    canvas.addEventListener('dblclick', () => this.zoom(null));
    canvas.addEventListener('keydown', event => this.key(event));
    canvas.addEventListener('blur', () => {
      this.reading.removeAttribute('aria-live');
      this.look(NaN);
    });
  }

  /** @param {number} x */
  stepAt(x) {
    if (!this.scales) return NaN;
    const { edge, xs } = this.scales;
    const across = this.canvas.clientWidth - edge - EDGE.right;
    return xs[0] + (Math.min(Math.max(x - edge, 0), across) / across) * (xs[1] - xs[0]);
  }

  /** The end of a drag: what it went over is shown. */
  drop() {
    const [a, b] = this.drag ?? [0, 0];
    this.drag = null;
    const [from, to] = [this.stepAt(Math.min(a, b)), this.stepAt(Math.max(a, b))];
    if (Math.abs(a - b) > DRAG && to - from >= 1) this.zoom([from, to]);
    else this.painter.ask();
  }

  /** @param {[number, number] | null} range null: all steps */
  zoom(range) {
    this.range = range;
    this.all.hidden = !range;
    this.painter.ask();
  }

  toggleLog() {
    const on = this.log.getAttribute('aria-pressed') !== 'true';
    this.log.setAttribute('aria-pressed', `${on}`);
    this.painter.ask();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const all = this.steps();
    if (!this.scales || !all || event.ctrlKey || event.altKey || event.metaKey) return;
    const { xs } = this.scales;
    const at = isNaN(this.at) ? xs[1] : this.at;
    /** @type {Record<string, () => void>} */
    const acts = {
      ArrowLeft: () => this.look(this.beside(at, -1)),
      ArrowRight: () => this.look(this.beside(at, 1)),
      Home: () => this.look(xs[0]),
      End: () => this.look(xs[1]),
      '+': () => this.zoom(zoomedSteps(xs, all, 0.5, at)),
      '-': () => this.zoom(zoomedSteps(xs, all, 2, at)),
      Escape: () => this.zoom(null)
    };
    const act = acts[event.key === '=' ? '+' : event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    this.reading.setAttribute('aria-live', 'polite');
    act();
  }

  /** The step of the point before or after a step. @param {number} at @param {1 | -1} way */
  beside(at, way) {
    const points = (this.main()?.points ?? []).filter(([step]) => this.isInSight(step));
    const index = points.findIndex(([step]) => step === nearest(points, at)?.[0]);
    const [step] = points[Math.min(Math.max(index + way, 0), points.length - 1)] ?? [NaN];
    return step;
  }

  /** The curve that is read: the newest that is shown. */
  main() {
    return this.series[this.series.length - 1];
  }

  /** @param {Series[]} series those that are shown, the newest last @param {number} smoothing */
  show(series, smoothing) {
    this.series = series;
    this.smoothing = smoothing;
    this.painter.ask();
  }

  /** @param {number} rank -1: none @param {[number, number][]} points */
  showRank(rank, points) {
    this.rank = rank;
    this.own = points;
    this.painter.ask();
  }

  /** @param {number} step NaN: the last one is read */
  look(step) {
    this.at = step;
    this.painter.ask();
  }

  steps() {
    return extent(this.series.flatMap(({ points }) => points.map(([step]) => step)));
  }

  /** @param {number} step */
  isInSight(step) {
    return !this.range || (step >= this.range[0] && step <= this.range[1]);
  }

  isLog() {
    return this.log.getAttribute('aria-pressed') === 'true';
  }

  /** The values in sight. @returns {[number, number] | null} */
  values() {
    /** @type {number[]} */
    const found = [];
    for (const { points, earlier } of this.series) {
      for (const [step, mean, low, high] of points) {
        if (this.isInSight(step)) found.push(known(mean), ...(earlier ? [] : [known(low), known(high)]));
      }
    }
    for (const [step, value] of this.own) if (this.isInSight(step)) found.push(known(value));
    return extent(this.isLog() ? found.filter(value => value > 0) : found);
  }

  paint() {
    const { canvas, theme } = this;
    const width = this.area.clientWidth;
    if (!width) return;
    const context = sized(canvas, width, HEIGHT);
    context.clearRect(0, 0, width, HEIGHT);
    this.read();
    const [xs, ys] = [this.range ?? this.steps(), this.values()];
    this.scales = null;
    if (!xs || !ys) return;
    context.font = `10px ${theme.font}`;
    const log = this.isLog();
    const words = valueTicks(ys, log).map(value => context.measureText(numberText(value)).width);
    const scales = scalesOf(xs, ys, Math.max(24, ...words) + 8, width, log);
    this.scales = scales;
    drawAxes(context, theme, scales, width);
    context.save();
    context.beginPath();
    context.rect(scales.edge, 0, width - scales.edge, HEIGHT - EDGE.bottom + 1);
    context.clip();
    this.drawSeries(context, scales);
    this.drawPointer(context, scales);
    context.restore();
  }

  /** @param {CanvasRenderingContext2D} context @param {Scales} scales */
  drawSeries(context, scales) {
    const { colours } = this.theme;
    for (const series of this.series) {
      const colour = colours[colourOf(series)];
      const means = series.points.map(([step, mean]) => /** @type {const} */ ([step, known(mean)]));
      if (!series.earlier) drawBand(context, colour, scales, series.points);
      context.globalAlpha = series.earlier ? 0.6 : 1;
      if (this.smoothing) {
        context.globalAlpha *= 0.35;
        drawLine(context, colour, scales, means);
        context.globalAlpha = series.earlier ? 0.6 : 1;
      }
      drawLine(context, colour, scales, smoothed(means, this.smoothing), dashOf(series));
      context.globalAlpha = 1;
    }
    const own = this.own.map(([step, value]) => /** @type {const} */ ([step, known(value)]));
    if (own.length) drawLine(context, colours.silent, scales, smoothed(own, this.smoothing));
  }

  /** @param {CanvasRenderingContext2D} context @param {Scales} scales */
  drawPointer(context, scales) {
    const { colours } = this.theme;
    if (this.drag) {
      const [a, b] = this.drag;
      context.fillStyle = colours.focus;
      context.globalAlpha = 0.15;
      context.fillRect(Math.min(a, b), EDGE.top, Math.abs(a - b), HEIGHT - EDGE.top - EDGE.bottom);
      context.globalAlpha = 1;
    }
    const point = isNaN(this.at) ? undefined : nearest(this.main()?.points ?? [], this.at);
    if (!point) return;
    context.fillStyle = colours.dim;
    context.fillRect(scales.x(point[0]), EDGE.top, 1, HEIGHT - EDGE.top - EDGE.bottom);
    for (const series of this.series) {
      const [step, mean] = nearest(series.points, point[0]) ?? [NaN, NaN];
      const y = scales.y(known(mean));
      if (!isFinite(y)) continue;
      context.fillStyle = colours[colourOf(series)];
      context.beginPath();
      context.arc(scales.x(step), y, 3, 0, 7);
      context.fill();
    }
  }

  /** Say the values at the step that is looked at, else at the last one. */
  read() {
    const main = this.main();
    const points = main?.points ?? [];
    const point = isNaN(this.at) ? points[points.length - 1] : nearest(points, this.at);
    const [step, mean, low, high] = point ?? [];
    setText(this.value, numberText(known(mean)));
    if (!point) return setText(this.reading, 'no values yet');
    const own = this.own.find(([at]) => at === step);
    const mine = own ? `, rank ${this.rank}: ${numberText(known(own[1]))}` : '';
    const others = this.series.filter(one => one !== main).reverse();
    const looked = !isNaN(this.at);
    setText(this.reading, `step ${numberText(known(step))}${apart(low, high)}${mine}`);
    this.tip.hidden = !looked || !others.length;
    if (this.tip.hidden) return;
    const lines = [main, ...others].map(one => this.told(one, known(step)));
    this.tip.replaceChildren(...lines);
    const x = this.scales?.x(known(step)) ?? 0;
    this.tip.classList.toggle('mnb-left', x > this.canvas.clientWidth / 2);
  }

  /** A line of a run at a step. @param {Series} series @param {number} step */
  told(series, step) {
    const [, mean, low, high] = nearest(series.points, step) ?? [];
    const line = element('div', 'tip-line');
    const sign = swatchOf(series, this.theme);
    line.append(sign, `${cutText(series.name, 40)}: ${numberText(known(mean))}${apart(low, high)}`);
    return line;
  }

  async saveTable() {
    const own = () => ({ csv: csvText(this.series) }); // no kernel
    const { csv } = await this.askTable().catch(own);
    saveFile(`${this.name}.csv`, new Blob([csv], { type: 'text/csv' }));
  }

  savePicture() {
    const { canvas, theme } = this;
    const [width, head] = [canvas.clientWidth, 20];
    const whole = element('canvas', '');
    const context = sized(whole, width, head + HEIGHT);
    context.fillStyle = theme.colours.back;
    context.fillRect(0, 0, width, head + HEIGHT);
    context.textBaseline = 'middle';
    let x = 4;
    const say = (/** @type {string} */ font, /** @type {string} */ colour, /** @type {string} */ text) => {
      context.font = `${font} ${theme.font}`;
      context.fillStyle = theme.colours[colour];
      context.fillText(text, x, head / 2);
      x += context.measureText(text).width + 10;
    };
    say('600 12px', 'text', this.name);
    for (const one of [...this.series].reverse()) {
      if (one.name) say('11px', colourOf(one), cutText(one.name, 40));
    }
    context.drawImage(canvas, 0, head, width, HEIGHT);
    whole.toBlob(blob => blob && saveFile(`${this.name}.png`, blob));
  }

  dispose() {
    this.painter.cancel();
    this.box.remove();
  }
}

/** @param {number | null | undefined} low @param {number | null | undefined} high */
function apart(low, high) {
  return low === high ? '' : `, ${numberText(known(low))} to ${numberText(known(high))}`;
}

/** @param {[number, number]} ys @param {boolean} log */
function valueTicks([low, high], log) {
  return log ? logTicks(low, high, 3) : ticks(low, high, 3);
}

/** @param {[number, number]} xs @param {[number, number]} ys @param {number} edge @param {number} width @param {boolean} log @returns {Scales} */
function scalesOf(xs, ys, edge, width, log) {
  const across = width - edge - EDGE.right;
  const down = HEIGHT - EDGE.top - EDGE.bottom;
  const place = (/** @type {number} */ value) => (log ? (value > 0 ? Math.log10(value) : NaN) : value);
  const [low, high] = [place(ys[0]), place(ys[1])];
  return {
    ...{ edge, xs, ys, log },
    x: step => edge + ((step - xs[0]) / (xs[1] - xs[0])) * across,
    y: value => EDGE.top + (1 - (place(value) - low) / (high - low)) * down
  };
}

/** @param {CanvasRenderingContext2D} context @param {Theme} theme @param {Scales} scales @param {number} width */
function drawAxes(context, { colours }, scales, width) {
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  for (const value of valueTicks(scales.ys, scales.log)) {
    const y = scales.y(value);
    context.fillStyle = colours.line;
    context.fillRect(scales.edge, Math.round(y), width - scales.edge - EDGE.right, 1);
    context.fillStyle = colours.dim;
    context.fillText(numberText(value), scales.edge - 5, y);
  }
  for (const step of ticks(...scales.xs, width / 90)) {
    const text = numberText(step);
    const half = context.measureText(text).width / 2;
    const x = Math.min(scales.x(step), width - half - 1);
    context.textAlign = 'center';
    context.fillText(text, x, HEIGHT - 6);
  }
}

/** @param {CanvasRenderingContext2D} context @param {string} colour @param {Scales} scales @param {import("../data/protocol.js").CurvePoint[]} points */
function drawBand(context, colour, { x, y }, points) {
  context.fillStyle = colour;
  context.globalAlpha = 0.2;
  for (let i = 1; i < points.length; i++) {
    const [a, , lowA, highA] = points[i - 1];
    const [b, , lowB, highB] = points[i];
    const ys = [lowA, highA, highB, lowB].map(value => y(known(value)));
    if (!ys.every(isFinite)) continue;
    context.beginPath();
    context.moveTo(x(a), ys[0]);
    context.lineTo(x(a), ys[1]);
    context.lineTo(x(b), ys[2]);
    context.lineTo(x(b), ys[3]);
    context.fill();
  }
  context.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} context @param {string} colour @param {Scales} scales @param {Line} points @param {number[]} [dash] */
export function drawLine(context, colour, { x, y }, points, dash = []) {
  context.setLineDash(dash);
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.5;
  context.lineJoin = 'round';
  context.beginPath();
  let before = NaN;
  let at = points.length ? y(points[0][1]) : NaN;
  for (let i = 0; i < points.length; i++) {
    const after = i + 1 < points.length ? y(points[i + 1][1]) : NaN;
    const across = x(points[i][0]);
    if (isFinite(at) && isFinite(before)) context.lineTo(across, at);
    else if (isFinite(at) && isFinite(after)) context.moveTo(across, at);
    else if (isFinite(at)) context.fillRect(across - 1, at - 1, 2.5, 2.5); // alone
    [before, at] = [at, after];
  }
  context.stroke();
  context.setLineDash([]);
}
