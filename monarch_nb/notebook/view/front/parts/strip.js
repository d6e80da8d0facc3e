// @ts-check
// The last five minutes, a row a rank. Rule of the file: many ranks share rows, and the worst of them shows.

import { STRIP_SECONDS, runsText } from '../data/protocol.js';
import { FoldedStrips, letterText } from '../data/strips.js';
import { element, onceAFrame, setText, sized, takeKeys } from '../ui/page.js';

/** @typedef {{onHover(rank: number): void, onSelect(ranks: Set<number>): void}} StripEvents */

const STRIP_LABEL =
  'what each rank did in the last five minutes; arrow keys read it, Enter selects the ranks';
const SPANS = [60, 120, STRIP_SECONDS];
const MOST_ROWS = 64;
const STRIP_GUTTER = 26;
const TOP = 4;
const RAISED = 101; // "e"
const RAISED_PX = 3;
const FOOT = 14;

/** Which ranks share a row. @param {number[]} ranks @returns {number[][]} */
export function rowsOf(ranks) {
  const share = Math.ceil(ranks.length / MOST_ROWS) || 1;
  const rows = Math.ceil(ranks.length / share);
  return Array.from({ length: rows }, (_, row) => ranks.slice(row * share, (row + 1) * share));
}

/** "45 s", "2 min". @param {number} ago seconds */
function agoText(ago) {
  return ago % 60 ? `${ago} s` : `${ago / 60} min`;
}

/** The timeline's canvas. A second is one pixel of an image that is stretched to its place. */
export class Strip {
  /** @param {HTMLElement} el @param {StripEvents} events @param {import("../ui/page.js").Theme} theme */
  constructor(el, events, theme) {
    this.el = el;
    this.events = events;
    this.theme = theme;
    this.canvas = element('canvas', 'canvas');
    takeKeys(this.canvas, 'application', 'timeline');
    this.canvas.setAttribute('aria-label', STRIP_LABEL);
    this.tip = element('div', 'tip');
    this.tip.hidden = true;
    el.append(this.canvas, this.tip);
    this.image = document.createElement('canvas');
    this.hatching = document.createElement('canvas');
    /** @type {import("../data/model.js").Mesh | null} */
    this.mesh = null;
    /** @type {number[][]} */
    this.rows = [];
    /** @type {FoldedStrips | null} */
    this.letters = null;
    /** @type {Set<number>} */
    this.selected = new Set();
    this.hovered = -1;
    /** What the keyboard reads: a row, and how many seconds ago. */
    this.at = { row: 0, ago: 0 };
    this.painter = onceAFrame(() => this.paint());
    this.canvas.addEventListener('pointermove', event => this.look(event));
    this.canvas.addEventListener('pointerleave', () => this.leave());
    this.canvas.addEventListener('keydown', event => this.key(event));
    this.canvas.addEventListener('blur', () => this.leave());
    this.canvas.addEventListener('click', event => {
      events.onSelect(new Set(this.rows[this.rowAt(event.offsetY)]));
    });
  }

  /** @param {import("../data/model.js").Mesh} mesh @param {number[]} ranks */
  show(mesh, ranks) {
    this.mesh = mesh;
    this.rows = rowsOf(ranks);
    this.letters = new FoldedStrips(mesh.strips, this.rows);
    this.refresh();
  }

  refresh() {
    this.painter.ask();
  }

  /** @param {number} rank */
  hover(rank) {
    this.hovered = rank;
    this.refresh();
  }

  /** @param {Set<number>} ranks */
  select(ranks) {
    this.selected = ranks;
    this.refresh();
  }

  get rowHeight() {
    return Math.max(3, Math.min(13, Math.floor(230 / (this.rows.length || 1))));
  }

  /** @param {number} y */
  rowAt(y) {
    return Math.max(0, Math.min(this.rows.length - 1, Math.floor((y - TOP) / this.rowHeight)));
  }

  /** How many seconds are shown, one minute at the least, and how wide one is. */
  get scale() {
    const width = Math.max(0, this.el.clientWidth - STRIP_GUTTER);
    const known = this.mesh?.strips.known ?? 0;
    const span = SPANS.find(each => known <= each) ?? STRIP_SECONDS;
    const seconds = Math.max(1, Math.min(span, Math.floor(width)));
    return { seconds, pixels: width / seconds };
  }

  /** @param {PointerEvent} event */
  look(event) {
    const { seconds, pixels } = this.scale;
    const place = Math.floor((event.offsetX - STRIP_GUTTER) / pixels);
    const ago = Math.max(0, seconds - 1 - Math.max(0, place));
    this.read(this.rowAt(event.offsetY), ago, { x: event.offsetX, y: event.offsetY });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { seconds, pixels } = this.scale;
    const { row, ago } = this.at;
    /** @type {Record<string, [number, number]>} */
    const steps = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, event.shiftKey ? 10 : 1],
      ArrowRight: [0, event.shiftKey ? -10 : -1],
      Home: [0, seconds],
      End: [0, -seconds]
    };
    const step = steps[event.key];
    if (step) {
      const next = [row + step[0], ago + step[1]].map(one => Math.max(0, one));
      this.at = { row: Math.min(next[0], this.rows.length - 1), ago: Math.min(next[1], seconds - 1) };
      this.tip.setAttribute('aria-live', 'polite');
      const x = STRIP_GUTTER + (seconds - this.at.ago - 0.5) * pixels;
      this.read(this.at.row, this.at.ago, { x, y: TOP + (this.at.row + 0.5) * this.rowHeight });
    } else if (event.key === 'Enter' || event.key === ' ') {
      this.events.onSelect(new Set(this.rows[row]));
    } else if (event.key === 'Escape') this.leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Tell what a row did. @param {number} index @param {number} ago seconds @param {{x: number, y: number}} point where */
  read(index, ago, { x, y }) {
    const row = this.rows[index];
    if (!row || !this.letters) return;
    if (!row.includes(this.hovered)) this.events.onHover(row[0]);
    const who = row.length > 1 ? `ranks ${runsText(row)}` : `rank ${row[0]}`;
    setText(this.tip, `${who}\n${letterText(this.letters.letter(index, ago))}, ${ago + 1} s ago`);
    this.tip.hidden = false;
    const most = this.el.clientWidth - this.tip.offsetWidth - 2;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, most))}px`;
    this.tip.style.top = `${y + 16}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.tip.removeAttribute('aria-live');
    this.events.onHover(-1);
  }

  paint() {
    const { mesh, rows, rowHeight, el } = this;
    const { seconds, pixels } = this.scale;
    if (!mesh || !el.clientWidth || !rows.length) return;
    const height = rows.length * rowHeight;
    const width = el.clientWidth;
    const context = sized(this.canvas, width, TOP + height + FOOT);
    context.clearRect(0, 0, width, TOP + height + FOOT);
    context.translate(0, TOP);
    const { steady, hatched } = this.pictures(seconds);
    context.imageSmoothingEnabled = false;
    this.put(context, steady, pixels * seconds, height);
    context.drawImage(
      this.hatch(hatched, pixels * seconds, height),
      STRIP_GUTTER,
      0,
      pixels * seconds,
      height
    );
    this.paintRaised(context, width, rowHeight, seconds);
    this.paintRows(context, width, rowHeight);
    this.paintAxis(context, width, height, seconds);
  }

  /** @param {CanvasRenderingContext2D} context @param {ImageData} picture @param {number} width @param {number} height */
  put(context, picture, width, height, left = STRIP_GUTTER) {
    this.image.width = picture.width;
    this.image.height = picture.height;
    this.image.getContext('2d')?.putImageData(picture, 0, 0);
    context.drawImage(this.image, left, 0, width, height);
  }

  /** Two images, a pixel a second and row: all letters, and where collectives are. @param {number} seconds */
  pictures(seconds) {
    const { rows } = this;
    const letters = /** @type {FoldedStrips} */ (this.letters);
    letters.update();
    const steady = new ImageData(seconds, rows.length);
    const hatched = new ImageData(seconds, rows.length);
    const palette = this.palette();
    for (let row = 0; row < rows.length; row++) {
      for (let second = 0; second < seconds; second++) {
        const letter = letters.letter(row, seconds - 1 - second);
        const at = 4 * (row * seconds + second);
        const colour = palette[letter];
        if (colour) steady.data.set(colour, at);
        if (letter === 99) hatched.data[at + 3] = 255;
      }
    }
    return { steady, hatched };
  }

  /** Red, green, blue and strength of each letter. */
  palette() {
    const { colours } = this.theme;
    /** @type {Record<number, number[]>} */
    const palette = {};
    const set = (
      /** @type {string} */ letter,
      /** @type {string} */ name,
      /** @type {number} */ strength
    ) => {
      const parts = (colours[name].match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
      palette[letter.charCodeAt(0)] = [...parts, 255 * strength];
    };
    set('.', 'line', 0.4);
    set('0', 'idle', 0.16);
    for (let digit = 1; digit <= 9; digit++) set(`${digit}`, 'busy', 0.22 + digit * 0.08);
    set('c', 'collective', 0.75);
    set('p', 'paused', 1);
    set('s', 'grey', 0.45);
    set('z', 'silent', 1);
    set('e', 'dead', 1);
    set('x', 'dead', 0.85);
    return palette;
  }

  /** Slanted lines where collectives are, so that nobody needs their colour. @param {ImageData} mask @param {number} width @param {number} height */
  hatch(mask, width, height) {
    const context = sized(this.hatching, width, height);
    context.imageSmoothingEnabled = false;
    context.globalCompositeOperation = 'copy';
    this.put(context, mask, width, height, 0);
    context.globalCompositeOperation = 'source-in';
    const tile = document.createElement('canvas');
    tile.width = tile.height = 4;
    const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext('2d'));
    pen.fillStyle = this.theme.colours.back;
    for (let i = 0; i < 4; i++) pen.fillRect(i, 3 - i, 1, 1);
    context.fillStyle = /** @type {CanvasPattern} */ (context.createPattern(tile, 'repeat'));
    context.fillRect(0, 0, width, height);
    return this.hatching;
  }

  /** A second in which a rank raised is as wide as can be seen. @param {CanvasRenderingContext2D} context @param {number} width @param {number} rowHeight @param {number} seconds */
  paintRaised(context, width, rowHeight, seconds) {
    const letters = /** @type {FoldedStrips} */ (this.letters);
    const pixels = (width - STRIP_GUTTER) / seconds;
    context.fillStyle = this.theme.colours.dead;
    for (let row = 0; row < this.rows.length; row++) {
      for (let ago = 0; ago < seconds; ago++) {
        if (letters.letter(row, ago) !== RAISED) continue;
        const middle = width - (ago + 0.5) * pixels;
        const wide = Math.max(RAISED_PX, pixels);
        context.fillRect(middle - wide / 2, row * rowHeight, wide, rowHeight);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} rowHeight */
  paintRows(context, width, rowHeight) {
    const { colours, font } = this.theme;
    const step = 2 ** Math.ceil(Math.log2(11 / rowHeight));
    context.font = `10px ${font}`;
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    context.lineWidth = 1;
    const hoveredRow = this.rows.findIndex(ranks => ranks.includes(this.hovered));
    this.rows.forEach((ranks, row) => {
      const [top, middle] = [row * rowHeight, (row + 0.5) * rowHeight];
      if (rowHeight >= 7) context.clearRect(STRIP_GUTTER, top + rowHeight - 1, width, 1);
      const hovered = row === hoveredRow;
      const selected = ranks.some(rank => this.selected.has(rank));
      context.fillStyle = hovered || selected ? colours.text : colours.dim;
      const near = hoveredRow >= 0 && Math.abs(row - hoveredRow) * rowHeight < 11;
      if (hovered || (row % step === 0 && !near))
        context.fillText(`${ranks[0]}`, STRIP_GUTTER - 6, middle);
      if (selected) context.fillRect(STRIP_GUTTER - 4, top, 2.5, rowHeight - 0.5);
      if (!hovered) return;
      context.strokeStyle = colours.text;
      context.strokeRect(STRIP_GUTTER + 0.5, top - 0.5, width - STRIP_GUTTER - 1, rowHeight);
    });
  }

  /** @param {CanvasRenderingContext2D} context @param {number} width @param {number} height @param {number} seconds */
  paintAxis(context, width, height, seconds) {
    const { colours } = this.theme;
    context.fillStyle = context.strokeStyle = colours.dim;
    const step = seconds > 120 ? 60 : seconds > 60 ? 30 : 15;
    for (let ago = 0; ago < seconds; ago += step) {
      const x = width - ago * ((width - STRIP_GUTTER) / seconds);
      context.textAlign = ago ? 'center' : 'right';
      context.fillText(ago ? agoText(ago) : 'now', x, height + 8);
      context.fillRect(Math.min(x, width - 1), height, 1, 2);
    }
  }

  /** @param {import("../ui/page.js").Theme} theme */
  setTheme(theme) {
    this.theme = theme;
    this.refresh();
  }

  dispose() {
    this.painter.cancel();
  }
}
