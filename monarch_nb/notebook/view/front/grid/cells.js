// @ts-check
// How one rank looks. Rule of the file: a cell draws inside its own rectangle and one pixel around it.

import { cutText } from '../data/protocol.js';
import { isWorking, loadOf, markOf, matterOf, sinceText } from '../data/words.js';
import { sized } from '../ui/page.js';

/**
 * @typedef {import("../ui/page.js").Theme} Theme
 * @typedef {{x: number, y: number, width: number, height: number}} Box
 */

/** @type {import("../data/words.js").Shape[]} */
const FILLED = ['full', 'bars', 'triangle', 'cross'];
const NUMBERED = 24; // pixels
const LIFT = 6; // the number stands below the sign
const BELOW = 0.73;

/** Whether a small cell has room for the rank's number. @param {Box} box */
function isNumbered({ width, height }) {
  return Math.min(width, height) >= NUMBERED;
}

/**
 * A state's sign: colour and shape.
 * @param {CanvasRenderingContext2D} context
 * @param {Theme} theme
 * @param {string} state
 * @param {Box} box
 * @param {number} [lift] how far the sign stands above the middle
 */
export function drawMark(context, { colours }, state, box, lift = 0) {
  const { shape, colour } = markOf(state);
  const fill = colours[colour];
  const filled = FILLED.includes(shape);
  context.fillStyle = context.strokeStyle = fill;
  context.lineWidth = 1;
  context.beginPath();
  context.roundRect(box.x, box.y, box.width, box.height, Math.min(3, box.width / 5));
  if (filled) context.fill();
  else if (shape !== 'dashed' && shape !== 'hollow') {
    context.globalAlpha = 0.22;
    context.fill();
    context.globalAlpha = 1;
  }
  if (!filled) drawOutline(context, shape, box);
  const upper = { ...box, height: box.height - 2 * lift };
  drawSign(context, shape, upper, filled ? colours.on : fill);
}

/** @param {CanvasRenderingContext2D} context @param {string} shape @param {Box} box */
function drawOutline(context, shape, box) {
  context.setLineDash(shape === 'dashed' ? [2.5, 2] : []);
  context.globalAlpha = shape === 'dot' ? 0.55 : 0.9;
  context.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
  context.globalAlpha = 1;
  context.setLineDash([]);
}

/** @param {CanvasRenderingContext2D} context @param {string} shape @param {Box} box @param {string} colour */
function drawSign(context, shape, box, colour) {
  const x = box.x + box.width / 2;
  const y = box.y + box.height / 2;
  const r = Math.min(box.width, box.height, 30) / 2;
  context.fillStyle = context.strokeStyle = colour;
  context.beginPath();
  if (shape === 'dot') context.arc(x, y, r * 0.36, 0, 7);
  else if (shape === 'diamond') outline(context, x, y, r, [0, -0.66, 0.66, 0, 0, 0.66, -0.66, 0]);
  else if (shape === 'triangle') outline(context, x, y, r, [0, -0.62, 0.62, 0.5, -0.62, 0.5]);
  else if (shape === 'bars') {
    context.rect(x - r * 0.45, y - r * 0.5, r * 0.3, r);
    context.rect(x + r * 0.15, y - r * 0.5, r * 0.3, r);
  } else if (shape === 'bang') {
    context.rect(x - r * 0.14, y - r * 0.6, r * 0.28, r * 0.76);
    context.rect(x - r * 0.14, y + r * 0.34, r * 0.28, r * 0.28);
  } else if (shape === 'cross') return drawCross(context, x, y, r * 0.5);
  context.fill();
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} r @param {number[]} points */
function outline(context, x, y, r, points) {
  for (let i = 0; i < points.length; i += 2) {
    context.lineTo(x + r * points[i], y + r * points[i + 1]);
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} r */
function drawCross(context, x, y, r) {
  context.lineWidth = Math.max(1.2, r * 0.42);
  context.lineCap = 'round';
  context.moveTo(x - r, y - r);
  context.lineTo(x + r, y + r);
  context.moveTo(x + r, y - r);
  context.lineTo(x - r, y + r);
  context.stroke();
  context.lineCap = 'butt';
}

/** Marks of one size, drawn once each: a thousand copies are cheap where a thousand paths are not. */
export class Stamps {
  /** @param {Theme} theme @param {number} width @param {number} height */
  constructor(theme, width, height) {
    this.theme = theme;
    this.width = width;
    this.height = height;
    this.ratio = devicePixelRatio || 1;
    /** @type {Map<string, HTMLCanvasElement>} */
    this.made = new Map();
  }

  /** Whether they are still right. @param {Theme} theme @param {number} width @param {number} height */
  fit(theme, width, height) {
    const same = this.width === width && this.height === height;
    return same && this.theme === theme && this.ratio === (devicePixelRatio || 1);
  }

  /** @param {CanvasRenderingContext2D} context @param {string} state @param {number} x @param {number} y */
  put(context, state, x, y) {
    const { width, height } = this;
    let stamp = this.made.get(state);
    if (!stamp) {
      stamp = document.createElement('canvas');
      const box = { x: 0, y: 0, width, height };
      drawMark(sized(stamp, width, height), this.theme, state, box, isNumbered(box) ? LIFT : 0);
      this.made.set(state, stamp);
    }
    context.drawImage(stamp, x, y, width, height);
  }
}

/**
 * A small cell: the mark, the rank's number and its load where there is room.
 * @param {CanvasRenderingContext2D} context
 * @param {Stamps} stamps
 * @param {import("../data/model.js").Mesh} mesh
 * @param {number} rank
 * @param {Box} box
 */
export function drawSmall(context, stamps, mesh, rank, box) {
  const { theme } = stamps;
  stamps.put(context, mesh.state(rank), box.x, box.y);
  const shape = markOf(mesh.state(rank)).shape;
  const isFilled = FILLED.includes(shape);
  if (isNumbered(box)) {
    context.fillStyle = isFilled ? theme.colours.on : theme.colours.text;
    context.font = `600 10px ${theme.font}`;
    context.textAlign = 'center';
    context.textBaseline = 'middle';
    const place = shape === 'full' ? 0.5 : BELOW;
    context.fillText(`${rank}`, box.x + box.width / 2, box.y + box.height * place);
  }
  if (box.width < 14) return;
  drawLoad(context, isFilled ? theme.colours.on : theme.colours.text, mesh, rank, {
    x: box.x + 2.5,
    y: box.y + box.height - 4,
    width: box.width - 5,
    height: 1.5
  });
}

/** @param {CanvasRenderingContext2D} context @param {string} colour @param {import("../data/model.js").Mesh} mesh @param {number} rank @param {Box} box */
function drawLoad(context, colour, mesh, rank, box) {
  const load = loadOf(mesh, rank);
  if (isNaN(load)) return;
  context.fillStyle = colour;
  context.globalAlpha = 0.25;
  context.fillRect(box.x, box.y, box.width, box.height);
  context.globalAlpha = 0.85;
  context.fillRect(box.x, box.y, box.width * load, box.height);
  context.globalAlpha = 1;
}

/**
 * A roomy cell: rank, mark, since when, what it runs, its load.
 * @param {CanvasRenderingContext2D} context
 * @param {Theme} theme
 * @param {import("../data/model.js").Mesh} mesh
 * @param {number} rank
 * @param {Box} box
 * @param {number} clock
 */
export function drawRoomy(context, theme, mesh, rank, box, clock) {
  const { colours, font } = theme;
  const state = mesh.state(rank);
  drawCard(context, colours[markOf(state).colour], box, isWorking(state) ? 0.16 : 0.1);
  drawMark(context, theme, state, { x: box.x + 6, y: box.y + 6, width: 13, height: 13 });
  context.textBaseline = 'middle';
  context.textAlign = 'left';
  context.fillStyle = colours.text;
  context.font = `600 12px ${font}`;
  context.fillText(`${rank}`, box.x + 24, box.y + 13);
  const numberWidth = context.measureText(`${rank}`).width;
  context.font = `11px ${font}`;
  context.fillText(fitted(context, matterOf(mesh, rank), box.width - 12), box.x + 6, box.y + 29);
  context.fillStyle = colours.dim;
  context.font = `11px ${font}`;
  context.textAlign = 'right';
  const since = sinceText(mesh, rank, clock);
  const room = box.width - 34 - numberWidth;
  if (context.measureText(since).width <= room) {
    context.fillText(since, box.x + box.width - 6, box.y + 13);
  }
  const line = { x: box.x + 6, y: box.y + box.height - 5, width: box.width - 12, height: 2 };
  drawLoad(context, colours[markOf(state).colour], mesh, rank, line);
}

/** As much of a text as there is room for. @param {CanvasRenderingContext2D} context @param {string} text @param {number} room */
function fitted(context, text, room) {
  const short = cutText(text.trimStart(), 60);
  const width = context.measureText(short).width;
  const bare = short.replace(/^cell (?=In\[)/, '');
  if (width > room && bare !== short) return fitted(context, bare, room);
  return width <= room ? short : cutText(short, Math.floor((short.length * room) / width) - 1);
}

/** @param {CanvasRenderingContext2D} context @param {string} colour @param {Box} box @param {number} strength */
function drawCard(context, colour, box, strength) {
  context.beginPath();
  context.roundRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1, 4);
  context.fillStyle = context.strokeStyle = colour;
  context.globalAlpha = strength;
  context.fill();
  context.globalAlpha = 0.7;
  context.lineWidth = 1;
  context.stroke();
  context.globalAlpha = 1;
}

/**
 * The ring of a rank that is selected, under the pointer, or where the keyboard is.
 * @param {CanvasRenderingContext2D} context
 * @param {Theme} theme
 * @param {Box} box
 * @param {{selected: boolean, hovered: boolean, focused: boolean}} state
 */
export function drawRing(context, { colours }, box, { selected, hovered, focused }) {
  if (!selected && !hovered && !focused) return;
  const inset = box.width < 12 ? 1 : 0;
  context.lineWidth = selected || focused ? 2 : 1.5;
  context.strokeStyle = selected ? colours.text : focused ? colours.focus : colours.dim;
  context.setLineDash(focused && !hovered ? [4, 2] : []);
  context.beginPath();
  const { x, y, width, height } = box;
  context.roundRect(x + inset, y + inset, width - 2 * inset, height - 2 * inset, 3);
  context.stroke();
  context.setLineDash([]);
}
