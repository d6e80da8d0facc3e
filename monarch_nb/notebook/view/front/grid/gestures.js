// @ts-check
// What mouse and keyboard do on the grid. Rule of the file: gestures become calls of the grid, nothing is drawn here.

import { cellAt, cellsWithin, labelAt, neighbour, selection } from './geometry.js';

/** @typedef {import("./grid.js").Grid} Grid */

const DRAG_PX = 4;

/** @type {Record<string, [number, number]>} */
const ARROWS = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1]
};

/** @param {Grid} grid */
export function bindGestures(grid) {
  const { canvas, scroller } = grid;
  canvas.addEventListener('pointerdown', event => press(grid, event));
  canvas.addEventListener('pointermove', event => look(grid, event));
  canvas.addEventListener('pointerleave', () => leave(grid));
  canvas.addEventListener('keydown', event => key(grid, event));
  canvas.addEventListener('focus', () => {
    if (canvas.matches(':focus-visible')) grid.focus(grid.beginning()); // not by a click
  });
  canvas.addEventListener('blur', () => grid.focus(-1));
  scroller.addEventListener(
    'wheel',
    event => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const box = scroller.getBoundingClientRect();
      const point = { x: event.clientX - box.left, y: event.clientY - box.top };
      grid.zoomBy(event.deltaY < 0 ? 1 : -1, point);
    },
    { passive: false }
  );
}

/** In the picture's own pixels, also where the page is zoomed. @param {Grid} grid @param {{clientX: number, clientY: number}} event */
function pointOf(grid, event) {
  const { canvas, scroller } = grid;
  const box = canvas.getBoundingClientRect();
  return {
    x: ((event.clientX - box.left) * canvas.offsetWidth) / box.width + scroller.scrollLeft,
    y: ((event.clientY - box.top) * canvas.offsetHeight) / box.height + scroller.scrollTop
  };
}

/** @param {Grid} grid @param {PointerEvent} event */
function look(grid, event) {
  if (event.buttons) return;
  const point = pointOf(grid, event);
  const index = cellAt(grid.layout, point.x, point.y);
  const rank = index < 0 ? -1 : grid.frame.ranks[index];
  grid.canvas.style.cursor = index >= 0 || labelAt(grid.layout, point.x, point.y) ? 'pointer' : '';
  if (rank !== grid.hovered) grid.events.onHover(rank);
  grid.showTip(event.clientX, event.clientY);
}

/** @param {Grid} grid */
function leave(grid) {
  grid.events.onHover(-1);
  grid.tip.hidden = true;
}

/** @param {Grid} grid @param {PointerEvent} event */
function press(grid, event) {
  if (event.button === 1 || (event.button === 0 && event.altKey)) return pan(grid, event);
  if (event.button !== 0) return;
  const from = pointOf(grid, event);
  let dragged = false;
  track(grid, event, {
    move(now) {
      const to = pointOf(grid, now);
      dragged ||= Math.hypot(to.x - from.x, to.y - from.y) > DRAG_PX;
      if (dragged) showBand(grid, from, to);
    },
    up(now) {
      grid.band.hidden = true;
      if (dragged) pick(grid, cellsWithin(grid.layout, from, pointOf(grid, now)), now, 'add');
      else click(grid, from, now);
    }
  });
}

/** @param {Grid} grid @param {{x: number, y: number}} point @param {PointerEvent} event */
function click(grid, point, event) {
  const index = cellAt(grid.layout, point.x, point.y);
  if (index >= 0) return pick(grid, [index], event, 'toggle');
  pick(grid, labelAt(grid.layout, point.x, point.y)?.members ?? [], event, 'toggle');
}

/** @param {Grid} grid @param {number[]} indices @param {{shiftKey: boolean, ctrlKey: boolean, metaKey: boolean}} event @param {"add" | "toggle"} how with a modifier */
function pick(grid, indices, event, how) {
  const ranks = indices.map(index => grid.frame.ranks[index]);
  const further = event.shiftKey || event.ctrlKey || event.metaKey;
  grid.events.onSelect(selection(grid.selected, ranks, further ? how : 'set'));
}

/** @param {Grid} grid @param {{x: number, y: number}} from @param {{x: number, y: number}} to */
function showBand({ band }, from, to) {
  band.hidden = false;
  band.style.left = `${Math.min(from.x, to.x)}px`;
  band.style.top = `${Math.min(from.y, to.y)}px`;
  band.style.width = `${Math.abs(from.x - to.x)}px`;
  band.style.height = `${Math.abs(from.y - to.y)}px`;
}

/** @param {Grid} grid @param {PointerEvent} event */
function pan(grid, event) {
  event.preventDefault();
  const { scrollLeft, scrollTop } = grid.scroller;
  track(grid, event, {
    move(now) {
      grid.scroller.scrollLeft = scrollLeft + event.clientX - now.clientX;
      grid.scroller.scrollTop = scrollTop + event.clientY - now.clientY;
    },
    up() {}
  });
}

/**
 * Follow the pointer until it is released, also outside the canvas.
 * @param {Grid} grid
 * @param {PointerEvent} event
 * @param {{move(event: PointerEvent): void, up(event: PointerEvent): void}} steps
 */
function track({ canvas, tip, band }, event, { move, up }) {
  tip.hidden = true;
  const undo = new AbortController();
  const { signal } = undo;
  canvas.setPointerCapture(event.pointerId);
  canvas.addEventListener('pointermove', move, { signal });
  canvas.addEventListener(
    'pointerup',
    now => {
      undo.abort();
      up(now);
    },
    { signal }
  );
  canvas.addEventListener(
    'pointercancel',
    () => {
      undo.abort();
      band.hidden = true;
    },
    { signal }
  );
}

/** @param {Grid} grid @param {KeyboardEvent} event */
function key(grid, event) {
  const used = move(grid, event) || choose(grid, event) || zoom(grid, event);
  if (!used) return;
  event.preventDefault();
  event.stopPropagation();
}

/** @param {Grid} grid @param {KeyboardEvent} event */
function move(grid, event) {
  const { ranks } = grid.frame;
  const here = grid.places.get(grid.focused) ?? -1;
  const ends = { Home: 0, End: ranks.length - 1 };
  const arrow = ARROWS[event.key];
  let index = ends[/** @type {"Home"} */ (event.key)];
  if (arrow) {
    index =
      here < 0
        ? (grid.places.get(grid.beginning()) ?? 0)
        : neighbour(grid.layout, here, arrow[0], arrow[1]);
  }
  if (index === undefined) return false;
  grid.focus(ranks[index]);
  if (event.shiftKey) grid.events.onSelect(selection(grid.selected, [ranks[index]], 'add'));
  return true;
}

/** @param {Grid} grid @param {KeyboardEvent} event */
function choose(grid, event) {
  const { focused, selected, frame } = grid;
  if (event.key === 'Escape') grid.events.onSelect(new Set());
  else if (event.key === 'a' && (event.ctrlKey || event.metaKey)) {
    grid.events.onSelect(new Set(frame.ranks));
  } else if ((event.key === ' ' || event.key === 'Enter') && focused >= 0) {
    const how = event.key === ' ' ? 'toggle' : 'set';
    grid.events.onSelect(selection(selected, [focused], how));
    if (event.key === 'Enter') grid.events.onOpen();
  } else return false;
  return true;
}

/** Plus and minus, around the rank where the keyboard is. @param {Grid} grid @param {KeyboardEvent} event */
function zoom(grid, event) {
  const step = { '+': 1, '=': 1, '-': -1 }[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return false;
  const { layout, scroller } = grid;
  const index = grid.places.get(grid.focused) ?? 0;
  grid.zoomBy(step, {
    x: layout.x[index] + layout.cellWidth / 2 - scroller.scrollLeft,
    y: layout.y[index] + layout.cellHeight / 2 - scroller.scrollTop
  });
  return true;
}
