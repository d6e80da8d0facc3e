// @ts-check
// Where each rank is drawn: the last axis across, outer axes down, further ones in blocks. Rule of the file: pure, no canvas.

/**
 * @typedef {{labels: string[], axes: number[][], ranks: number[]}} Frame
 *   the axes shown with the coordinates on each, and the ranks in row-major order
 * @typedef {{text: string, x: number, y: number, kind: "row" | "column" | "block", members: number[]}} AxisLabel `members` are indices into the frame's ranks
 * @typedef {object} Layout
 * @property {number} pitchX from cell to cell
 * @property {number} pitchY
 * @property {number} cellWidth
 * @property {number} cellHeight
 * @property {boolean} roomy whether cells have room for words
 * @property {Float64Array} x of each cell, by index
 * @property {Float64Array} y
 * @property {number} width
 * @property {number} height
 * @property {AxisLabel[]} labels
 */

const GUTTER = 26;
const HEAD = 15;
const BLOCK_GAP = 8;
const ROOMY_RANKS = 16;
const ROOMY_HEIGHT = 46;
const ROOMY_WIDTH = 62;
const GOOD_WIDTH = 96;
const MOST_WIDTH = 150;
const PITCHES = [44, 38, 34, 30, 26, 23, 20, 18, 16, 14, 12, 10];

/**
 * What is shown of a mesh: all of it, a slice with its own coordinates, or a list of ranks.
 * @param {string[]} labels
 * @param {number[]} sizes
 * @param {number[] | null} ranks
 * @returns {Frame}
 */
export function frameOf(labels, sizes, ranks) {
  const total = sizes.reduce((a, b) => a * b, 1);
  if (!ranks && labels.length) return { labels, axes: sizes.map(range), ranks: range(total) };
  const isOne = (/** @type {number} */ rank) => Number.isInteger(rank) && rank >= 0 && rank < total;
  const shown = [...new Set(ranks ?? range(total))].filter(isOne).sort((a, b) => a - b);
  const axes = sizes.map((size, axis) => {
    const inner = sizes.slice(axis + 1).reduce((a, b) => a * b, 1);
    const found = new Set(shown.map(rank => Math.floor(rank / inner) % size));
    return [...found].sort((a, b) => a - b);
  });
  const product = axes.reduce((a, axis) => a * axis.length, 1);
  if (labels.length && product === shown.length) return { labels, axes, ranks: shown };
  return { labels: ['ranks'], axes: [shown], ranks: shown };
}

/**
 * The biggest cells that fit into the box; `zoom` makes them bigger and the picture overflow.
 * @param {Frame} frame
 * @param {{width: number, height: number}} box
 * @param {number} [zoom]
 * @returns {Layout}
 */
export function layOut(frame, box, zoom = 1) {
  const count = frame.ranks.length;
  if (count <= ROOMY_RANKS && zoom === 1) {
    const roomy = roomyCells(frame, box);
    if (roomy) return roomy;
  }
  for (const pitch of PITCHES) {
    if (count * pitch * pitch > box.width * box.height) continue;
    const layout = place(frame, box.width, box.height, pitch, pitch);
    if (layout.width <= box.width && layout.height <= box.height) {
      return zoom === 1 ? layout : zoomed(frame, layout, box, pitch * zoom);
    }
  }
  const least = PITCHES[PITCHES.length - 1];
  const tight = place(frame, box.width, Infinity, least, least);
  return zoom === 1 ? tight : zoomed(frame, tight, box, least * zoom);
}

/**
 * The same arrangement with bigger cells.
 * @param {Frame} frame
 * @param {Layout} layout
 * @param {{width: number, height: number}} box
 * @param {number} pitch
 */
function zoomed(frame, layout, box, pitch) {
  const scale = pitch / layout.pitchX;
  return place(frame, box.width * scale, box.height * scale, pitch, pitch);
}

/**
 * Few ranks have room for words. An axis that is alone wraps for wider cells; with several, lines stay lines.
 * @param {Frame} frame
 * @param {{width: number, height: number}} box
 */
function roomyCells(frame, box) {
  const across = frame.axes[frame.axes.length - 1].length;
  const wishes = frame.axes.length === 1 ? [GOOD_WIDTH, ROOMY_WIDTH] : [ROOMY_WIDTH];
  for (const least of wishes) {
    for (let columns = across; columns >= 1; columns = columns === 1 ? 0 : Math.ceil(columns / 2)) {
      const width = Math.min(MOST_WIDTH, Math.floor((box.width - GUTTER) / columns));
      if (width < least) continue;
      const layout = place(frame, GUTTER + width * columns, Infinity, width, ROOMY_HEIGHT);
      if (layout.height <= box.height * (least === GOOD_WIDTH ? 0.6 : 1)) return layout;
    }
  }
  return null;
}

/**
 * Cells of a fixed pitch. Blocks of the last two axes flow across like words; a single long block goes on in further columns.
 * @param {Frame} frame
 * @param {number} width
 * @param {number} height
 * @param {number} pitchX
 * @param {number} pitchY
 * @returns {Layout}
 */
function place(frame, width, height, pitchX, pitchY) {
  const layout = emptyLayout(frame.ranks.length, pitchX, pitchY);
  const plan = planOf(frame, layout, width, height);
  let left = 0;
  let top = 0;
  for (let block = 0; block < plan.blocks; block++) {
    if (left > 0 && left + plan.blockWidth > width) {
      left = 0;
      top = layout.height + BLOCK_GAP;
    }
    placeBlock(layout, plan, block, left, top);
    addLabels(layout, frame, plan, block, left, top);
    layout.width = Math.max(layout.width, left + plan.blockWidth);
    left += plan.blockWidth + BLOCK_GAP;
  }
  return layout;
}

/** @param {number} count @param {number} pitchX @param {number} pitchY @returns {Layout} */
function emptyLayout(count, pitchX, pitchY) {
  const pitch = Math.min(pitchX, pitchY);
  const gap = pitch >= 40 ? 4 : pitch >= 14 ? 2 : 1;
  return {
    pitchX,
    pitchY,
    cellWidth: pitchX - gap,
    cellHeight: pitchY - gap,
    roomy: pitchX >= ROOMY_WIDTH && pitchY >= ROOMY_HEIGHT,
    x: new Float64Array(count),
    y: new Float64Array(count),
    width: 0,
    height: 0,
    labels: []
  };
}

/**
 * How a block is cut: a line of the last axis into `wraps` lines of `columns` cells, all lines into columns of `fold` lines.
 * @param {Frame} frame
 * @param {Layout} layout
 * @param {number} width
 * @param {number} height
 */
function planOf(frame, { pitchX, pitchY }, width, height) {
  const depth = frame.axes.length;
  const across = frame.axes[depth - 1];
  const down = depth > 1 ? frame.axes[depth - 2] : [0];
  const blocks = frame.ranks.length / (across.length * down.length) || 0;
  const columns = Math.max(1, Math.min(across.length, Math.floor((width - GUTTER) / pitchX)));
  const wraps = Math.ceil(across.length / columns);
  const head = (depth > 2 ? HEAD : 2) + (wraps > 1 ? 0 : HEAD - 2);
  const lines = down.length * wraps;
  const room = Math.max(1, Math.floor((height - head) / pitchY / wraps));
  const parts = blocks === 1 ? Math.ceil(down.length / room) || 1 : 1;
  const fold = Math.ceil(down.length / parts) * wraps; // parts of equal height
  const partWidth = GUTTER + columns * pitchX;
  const blockWidth = Math.ceil(lines / fold) * partWidth;
  return { across, down, blocks, columns, wraps, head, fold, partWidth, blockWidth };
}

/** @param {Layout} layout @param {ReturnType<typeof planOf>} plan @param {number} block @param {number} left @param {number} top */
function placeBlock(layout, plan, block, left, top) {
  const { across, down, columns, wraps, fold } = plan;
  let index = block * across.length * down.length;
  for (let row = 0; row < down.length; row++) {
    for (let column = 0; column < across.length; column++, index++) {
      const line = row * wraps + Math.floor(column / columns);
      const start = left + GUTTER + Math.floor(line / fold) * plan.partWidth;
      layout.x[index] = start + (column % columns) * layout.pitchX;
      layout.y[index] = top + plan.head + (line % fold) * layout.pitchY;
      layout.height = Math.max(layout.height, layout.y[index] + layout.pitchY);
    }
  }
}

/**
 * @param {Layout} layout
 * @param {Frame} frame
 * @param {ReturnType<typeof planOf>} plan
 * @param {number} block
 * @param {number} left
 * @param {number} top
 */
function addLabels(layout, frame, plan, block, left, top) {
  const { across, down } = plan;
  const first = block * across.length * down.length;
  const some = (/** @type {number} */ row, /** @type {number} */ column, /** @type {number} */ count) =>
    range(Math.min(count, across.length - column)).map(i => first + row * across.length + column + i);
  if (frame.axes.length > 2) {
    const members = range(across.length * down.length).map(i => first + i);
    const text = blockText(frame, block);
    layout.labels.push({ kind: 'block', text, x: left + GUTTER, y: top + HEAD / 2, members });
  }
  for (let row = 0; row < down.length; row++) {
    if (frame.axes.length > 1) addRowLabel(layout, some(row, 0, across.length), `${down[row]}`);
    else {
      for (let column = 0; column < across.length; column += plan.columns) {
        const members = some(0, column, plan.columns);
        if (plan.wraps > 1) addRowLabel(layout, members, `${across[column]}`);
      }
    }
  }
  if (plan.wraps > 1) return;
  const y = top + plan.head - HEAD / 2;
  across.forEach((coordinate, column) => {
    const members = range(down.length).map(row => first + row * across.length + column);
    for (let row = 0; row < down.length; row += plan.fold) {
      const x = layout.x[members[row]] + layout.cellWidth / 2;
      layout.labels.push({ kind: 'column', text: `${coordinate}`, x, y, members });
    }
  });
}

/** @param {Layout} layout @param {number[]} members @param {string} text */
function addRowLabel(layout, members, text) {
  const x = layout.x[members[0]] - 6;
  const y = layout.y[members[0]] + layout.cellHeight / 2;
  layout.labels.push({ kind: 'row', text, x, y, members });
}

/** @param {number} count */
function range(count) {
  return Array.from({ length: count }, (_, i) => i);
}

/** "pods 3, racks 0" @param {Frame} frame @param {number} block */
function blockText(frame, block) {
  const outer = frame.axes.length - 2;
  /** @type {string[]} */
  const words = [];
  for (let axis = outer - 1, rest = block; axis >= 0; axis--) {
    const coordinates = frame.axes[axis];
    words.unshift(`${frame.labels[axis]} ${coordinates[rest % coordinates.length]}`);
    rest = Math.floor(rest / coordinates.length);
  }
  return words.join(', ');
}

/**
 * The index of the cell at a point, -1 beside them. The narrow gap between two belongs to them: nobody aims so well.
 * @param {Layout} layout
 * @param {number} x
 * @param {number} y
 */
export function cellAt(layout, x, y) {
  const across = (layout.pitchX - layout.cellWidth) / 2;
  const down = (layout.pitchY - layout.cellHeight) / 2;
  for (let i = 0; i < layout.x.length; i++) {
    const dx = x - layout.x[i] + across;
    const dy = y - layout.y[i] + down;
    if (dx >= 0 && dy >= 0 && dx < layout.pitchX && dy < layout.pitchY) return i;
  }
  return -1;
}

/**
 * The indices of the cells that a rectangle touches; its corners come in any order.
 * @param {Layout} layout
 * @param {{x: number, y: number}} from
 * @param {{x: number, y: number}} to
 */
export function cellsWithin(layout, from, to) {
  const [left, right] = from.x < to.x ? [from.x, to.x] : [to.x, from.x];
  const [top, bottom] = from.y < to.y ? [from.y, to.y] : [to.y, from.y];
  return range(layout.x.length).filter(
    i =>
      layout.x[i] <= right &&
      layout.x[i] + layout.cellWidth >= left &&
      layout.y[i] <= bottom &&
      layout.y[i] + layout.cellHeight >= top
  );
}

/** The label at a point. @param {Layout} layout @param {number} x @param {number} y */
export function labelAt(layout, x, y) {
  const reach = { row: [GUTTER - 5, 5], column: [layout.cellWidth / 2, layout.cellWidth / 2] };
  return layout.labels.find(label => {
    const [before, after] =
      label.kind === 'block' ? [4, label.text.length * 6.5] : reach[label.kind];
    const tall = label.kind === 'row' ? layout.cellHeight / 2 : HEAD / 2;
    return x >= label.x - before && x <= label.x + after && Math.abs(y - label.y) <= tall;
  });
}

/**
 * The cell that an arrow key leads to: the nearest in that direction; itself at the border.
 * @param {Layout} layout
 * @param {number} index
 * @param {number} dx -1, 0 or 1
 * @param {number} dy
 */
export function neighbour(layout, index, dx, dy) {
  let best = index;
  let least = Infinity;
  for (let i = 0; i < layout.x.length; i++) {
    const x = layout.x[i] - layout.x[index];
    const y = layout.y[i] - layout.y[index];
    const ahead = dx ? x * dx : y * dy;
    const aside = Math.abs(dx ? y : x);
    if (ahead <= 0 || (dx && aside > 1)) continue;
    const distance = ahead + 3 * aside;
    if (distance < least) [best, least] = [i, distance];
  }
  return best;
}

/**
 * A selection after a gesture: replaced, extended, or with these turned over.
 * @param {ReadonlySet<number>} selected
 * @param {number[]} ranks
 * @param {"set" | "add" | "toggle"} how
 * @returns {Set<number>}
 */
export function selection(selected, ranks, how) {
  if (how === 'set') return new Set(ranks);
  const next = new Set(selected);
  const remove = how === 'toggle' && ranks.every(rank => selected.has(rank));
  for (const rank of ranks) {
    if (remove) next.delete(rank);
    else next.add(rank);
  }
  return next;
}
