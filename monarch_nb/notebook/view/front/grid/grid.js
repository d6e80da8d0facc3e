// @ts-check
// The mesh as a picture that follows its axes. Rule of the file: one frame draws at most once, and only what has changed.

import { cutText } from '../data/protocol.js';
import { rankLines } from '../data/words.js';
import { element, onceAFrame, setText, sized, takeKeys } from '../ui/page.js';
import { Stamps, drawRing, drawRoomy, drawSmall } from './cells.js';
import { frameOf, layOut } from './geometry.js';
import { bindGestures } from './gestures.js';

/**
 * @typedef {import("../data/model.js").Mesh} Mesh
 * @typedef {{onHover(rank: number): void, onSelect(ranks: Set<number>): void, onOpen(): void, clock(): number}} GridEvents
 */

export const MOST_HEIGHT = 420;
const ZOOMS = [1, 1.5, 2, 3, 4, 6];
const GRID_KEYS = 'arrow keys go from rank to rank, space selects, Enter tells more';
let grids = 0;

/** A canvas as big as what is seen of it, in a box that scrolls. */
export class Grid {
  /** @param {HTMLElement} el @param {GridEvents} events @param {import("../ui/page.js").Theme} theme */
  constructor(el, events, theme) {
    this.events = events;
    this.theme = theme;
    this.axes = element('div', 'axes');
    this.scroller = element('div', 'scroll');
    this.spacer = element('div', 'spacer');
    this.canvas = element('canvas', 'canvas');
    this.band = element('div', 'band');
    this.tip = element('div', 'tip');
    takeKeys(this.canvas, 'listbox');
    this.canvas.setAttribute('aria-multiselectable', 'true');
    /** The rank where the keyboard is, for those who hear: the canvas has it as its only child. */
    this.option = element('div', '');
    this.option.setAttribute('role', 'option');
    this.id = `mnb-grid-${++grids}`;
    this.band.hidden = this.tip.hidden = true;
    this.spacer.append(this.canvas, this.band);
    this.scroller.append(this.spacer);
    el.append(this.axes, this.scroller, this.tip);
    /** @type {Mesh | null} */
    this.mesh = null;
    /** @type {import("./geometry.js").Frame} */
    this.frame = { labels: [], axes: [[]], ranks: [] };
    this.layout = layOut(this.frame, { width: 0, height: 0 });
    /** @type {Map<number, number>} */
    this.places = new Map();
    /** @type {Set<number>} */
    this.selected = new Set();
    this.hovered = -1;
    this.focused = -1;
    /** Where the keyboard was last. */
    this.place = -1;
    this.zoom = 1;
    /** @type {Set<number> | null} ranks to draw again; null: all */
    this.dirty = null;
    this.stamps = new Stamps(theme, 0, 0);
    this.painter = onceAFrame(() => this.paint());
    this.scroller.addEventListener('scroll', () => this.refresh(null), { passive: true });
    bindGestures(this);
  }

  /** @param {Mesh} mesh @param {number[] | null} ranks */
  show(mesh, ranks) {
    this.mesh = mesh;
    this.frame = frameOf(mesh.labels, mesh.sizes, ranks);
    this.places = new Map(this.frame.ranks.map((rank, index) => [rank, index]));
    const { labels } = this.frame;
    const [across, down] = [labels[labels.length - 1], labels[labels.length - 2]];
    const inner = [down && `${down} ↓`, `${across} →`].filter(Boolean);
    setText(this.axes, cutText([...labels.slice(0, -2), ...inner].join('   '), 200));
    const size = `mesh ${mesh.name}, ${this.frame.ranks.length} ranks`;
    this.canvas.setAttribute('aria-label', `${size}; ${GRID_KEYS}`);
    this.resize();
  }

  /** Fit the box that the page gives. */
  resize() {
    const width = this.scroller.clientWidth;
    if (!this.mesh || !width) return;
    this.layout = layOut(this.frame, { width, height: MOST_HEIGHT }, this.zoom);
    this.spacer.style.width = `${this.layout.width}px`;
    this.spacer.style.height = `${this.layout.height}px`;
    this.scroller.style.maxHeight = `${MOST_HEIGHT}px`;
    this.refresh(null);
  }

  /** @param {number} step +1 or -1 @param {{x: number, y: number}} point in the box, which stays where it is */
  zoomBy(step, point) {
    const next = ZOOMS[ZOOMS.indexOf(this.zoom) + step];
    if (!next) return;
    const { scrollLeft, scrollTop } = this.scroller;
    const share = {
      x: (scrollLeft + point.x) / this.layout.width,
      y: (scrollTop + point.y) / this.layout.height
    };
    this.zoom = next;
    this.resize();
    this.scroller.scrollLeft = share.x * this.layout.width - point.x;
    this.scroller.scrollTop = share.y * this.layout.height - point.y;
  }

  /** Draw ranks again in the next frame; null: everything. @param {Iterable<number> | null} ranks */
  refresh(ranks) {
    if (ranks === null) this.dirty = null;
    else if (this.dirty) for (const rank of ranks) this.dirty.add(rank);
    this.painter.ask();
  }

  /** A second has passed: times that are shown go on. */
  tick() {
    const { mesh, layout, frame } = this;
    if (!mesh) return;
    if (layout.roomy) {
      const told = frame.ranks.filter(rank => mesh.since(rank) > 0);
      if (told.length) this.refresh(told);
    }
    if (this.hovered >= 0) this.fillTip();
  }

  /** @param {number} rank -1: none */
  hover(rank) {
    if (rank === this.hovered) return;
    this.refresh([this.hovered, rank]);
    this.hovered = rank;
  }

  /** @param {Set<number>} ranks */
  select(ranks) {
    this.refresh([...this.selected, ...ranks]);
    this.selected = ranks;
    this.describe();
  }

  /** Where the keyboard is. @param {number} rank */
  focus(rank) {
    this.refresh([this.focused, rank]);
    this.focused = rank;
    this.describe();
    if (rank < 0) return;
    this.place = rank;
    this.reveal(this.places.get(rank) ?? 0);
  }

  /** Where the keyboard begins: where it was, else at what is selected. */
  beginning() {
    const { ranks } = this.frame;
    if (this.places.has(this.place)) return this.place;
    return ranks.find(rank => this.selected.has(rank)) ?? ranks[0] ?? -1;
  }

  /** Say where the keyboard is. */
  describe() {
    const { mesh, canvas, option, focused, places } = this;
    const index = places.get(focused);
    if (!mesh || index === undefined) {
      canvas.removeAttribute('aria-activedescendant');
      return option.remove();
    }
    setText(option, rankLines(mesh, focused, this.events.clock()).join(', '));
    option.id = `${this.id}-${focused}`;
    option.setAttribute('aria-selected', `${this.selected.has(focused)}`);
    option.setAttribute('aria-posinset', `${index + 1}`);
    option.setAttribute('aria-setsize', `${places.size}`);
    if (!option.parentNode) canvas.append(option);
    canvas.setAttribute('aria-activedescendant', option.id);
  }

  /** @param {number} index of a cell that has to be seen */
  reveal(index) {
    const { layout, scroller } = this;
    const [x, y] = [layout.x[index], layout.y[index]];
    const right = x + layout.cellWidth + 4 - scroller.clientWidth;
    const bottom = y + layout.cellHeight + 4 - scroller.clientHeight;
    scroller.scrollLeft = Math.max(right, Math.min(scroller.scrollLeft, x - 30));
    scroller.scrollTop = Math.max(bottom, Math.min(scroller.scrollTop, y - 18));
  }

  /** Put the tooltip beside the pointer. @param {number} x in the page @param {number} y */
  showTip(x, y) {
    this.tip.hidden = this.hovered < 0;
    if (this.tip.hidden) return;
    this.fillTip();
    const box = /** @type {HTMLElement} */ (this.tip.offsetParent)?.getBoundingClientRect();
    if (!box) return;
    const left = Math.min(x - box.left + 12, box.width - this.tip.offsetWidth - 2);
    this.tip.style.left = `${Math.max(2, left)}px`;
    this.tip.style.top = `${y - box.top + 16}px`;
  }

  fillTip() {
    if (this.mesh) {
      setText(this.tip, rankLines(this.mesh, this.hovered, this.events.clock()).join('\n'));
    }
  }

  paint() {
    const { mesh, layout, scroller, theme } = this;
    const { clientWidth, clientHeight, scrollLeft, scrollTop } = scroller;
    if (!mesh || !clientWidth) return;
    const sight = {
      x: Math.round(scrollLeft),
      y: Math.round(scrollTop),
      width: Math.min(clientWidth, Math.ceil(layout.width) + 1),
      height: Math.min(clientHeight, Math.ceil(layout.height) + 1)
    };
    const context = sized(this.canvas, sight.width, sight.height);
    context.translate(-sight.x, -sight.y);
    if (!this.stamps.fit(theme, layout.cellWidth, layout.cellHeight)) {
      this.stamps = new Stamps(theme, layout.cellWidth, layout.cellHeight);
    }
    if (this.dirty === null) {
      context.clearRect(sight.x, sight.y, sight.width, sight.height);
      this.paintLabels(context, sight);
      for (let index = 0; index < layout.x.length; index++) this.paintCell(context, index, sight);
    } else {
      for (const rank of this.dirty) {
        const index = this.places.get(rank);
        if (index !== undefined) this.paintCell(context, index, sight);
      }
    }
    this.dirty = new Set();
  }

  /** @param {CanvasRenderingContext2D} context @param {import("./cells.js").Box} sight */
  paintLabels(context, sight) {
    const { layout, theme } = this;
    context.font = `10px ${theme.font}`;
    context.fillStyle = theme.colours.dim;
    context.textBaseline = 'middle';
    const aligns = { row: 'right', column: 'center', block: 'left' };
    const step = layout.pitchX < 16 ? 4 : 1;
    for (const { kind, text, x, y, members } of layout.labels) {
      if (y < sight.y - 10 || y > sight.y + sight.height + 10) continue;
      const place = (members[0] ?? 0) % this.frame.axes[this.frame.axes.length - 1].length;
      if (kind === 'column' && place % step) continue;
      if (kind === 'row' && layout.pitchY < 10) continue;
      context.textAlign = /** @type {CanvasTextAlign} */ (aligns[kind]);
      context.fillText(text, x, y);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {number} index @param {import("./cells.js").Box} sight */
  paintCell(context, index, sight) {
    const { layout, theme } = this;
    const mesh = /** @type {Mesh} */ (this.mesh);
    const [x, y] = [layout.x[index], layout.y[index]];
    const box = { x, y, width: layout.cellWidth, height: layout.cellHeight };
    if (x > sight.x + sight.width || x + box.width < sight.x) return;
    if (y > sight.y + sight.height || y + box.height < sight.y) return;
    const rank = this.frame.ranks[index];
    if (this.dirty) context.clearRect(x - 1, y - 1, box.width + 2, box.height + 2);
    if (layout.roomy) drawRoomy(context, theme, mesh, rank, box, this.events.clock());
    else drawSmall(context, this.stamps, mesh, rank, box);
    drawRing(context, theme, box, {
      selected: this.selected.has(rank),
      hovered: rank === this.hovered,
      focused: rank === this.focused
    });
  }

  /** @param {import("../ui/page.js").Theme} theme */
  setTheme(theme) {
    this.theme = theme;
    this.refresh(null);
  }

  dispose() {
    this.painter.cancel();
  }
}
