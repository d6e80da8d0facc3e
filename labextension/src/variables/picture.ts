/** A tensor as dots. Dark is little, bright is much: a map that is even to the eye, also to those who see few colours. */

import { element, setText } from '../front.js';
import type { LocalTensor } from './place.js';

/** Each dot is the mean of `each` (rows, columns) numbers, 0 to 254 from `least` to `greatest`; 255 has a NaN. */
export interface Picture extends LocalTensor {
  indices: number[];
  rows: number;
  columns: number;
  each: number[];
  /** Null where nothing is finite. */
  least: number | null;
  greatest: number | null;
  /** Bytes in base64, row by row. */
  dots: string;
}

type Colour = readonly [number, number, number];

/** Viridis at every eighth; between them it is near enough to straight. */
const STOPS: readonly Colour[] = [
  [68, 1, 84],
  [71, 45, 123],
  [59, 82, 139],
  [44, 114, 142],
  [33, 145, 140],
  [39, 173, 129],
  [92, 200, 99],
  [170, 220, 50],
  [253, 231, 37]
];
const NAN_DOT = 255;
/** Vermilion, which the map has nowhere. */
const NAN_COLOUR: Colour = [213, 94, 0];
const MOST_SCALE = 24;
const LEAST_PX = 24;
/** What stands around the dots. */
const AROUND_PX = 48;

/** The colour of a dot. */
export function colourOf(dot: number): Colour {
  if (dot === NAN_DOT) {
    return NAN_COLOUR;
  }
  const at = (Math.min(Math.max(dot, 0), NAN_DOT - 1) / (NAN_DOT - 1)) * (STOPS.length - 1);
  const from = Math.min(Math.floor(at), STOPS.length - 2);
  const mix = (i: 0 | 1 | 2) => Math.round(STOPS[from][i] + (STOPS[from + 1][i] - STOPS[from][i]) * (at - from));
  return [mix(0), mix(1), mix(2)];
}

export function dotsOf({ dots }: Picture): Uint8Array {
  return Uint8Array.from(atob(dots), letter => letter.charCodeAt(0));
}

/** "each dot is the mean of 16 x 8 numbers" */
export function eachText({ each: [rows, columns] }: Picture): string {
  return rows * columns === 1 ? 'each dot is one number' : `each dot is the mean of ${rows} x ${columns} numbers`;
}

/** "rows 16-31, columns 8-15: about 0.52" */
export function dotText(picture: Picture, row: number, column: number, dot: number): string {
  const sizes = [picture.shape.at(-2) ?? 1, picture.shape.at(-1) ?? 1];
  const [down, across] = [row, column].map((at, axis) => {
    const first = at * picture.each[axis];
    const last = Math.min(first + picture.each[axis], sizes[axis]) - 1;
    return `${['row', 'column'][axis]}${first === last ? ` ${first}` : `s ${first}-${last}`}`;
  });
  return `${down}, ${across}: ${dot === NAN_DOT ? 'NaN' : `about ${shortNumber(valueOf(picture, dot))}`}`;
}

function valueOf({ least, greatest }: Picture, dot: number): number {
  return (least ?? 0) + ((greatest ?? 0) - (least ?? 0)) * (dot / (NAN_DOT - 1));
}

/** Four digits: "0.5234", "1.2e-7". */
export function shortNumber(value: number): string {
  return String(Number(value.toPrecision(4)));
}

/** How large a dot is, so that all of them fit into the room that there is; whole pixels, so that all are alike. */
export function scaleOf({ rows, columns }: Picture, width: number, height: number): number {
  const fits = Math.min((width - AROUND_PX) / columns, (height - AROUND_PX) / rows);
  return Math.min(MOST_SCALE, Math.max(1, Math.floor(fits)));
}

/** What the dots mean, and below that the dots, `scale` pixels each; what is under the pointer is told. */
export function drawPicture(name: string, picture: Picture, scale: number): HTMLElement {
  const box = element('figure', 'tensor-figure');
  const canvas = element('canvas', 'tensor-canvas');
  const { rows, columns } = picture;
  const dots = dotsOf(picture);
  canvas.width = columns;
  canvas.height = rows;
  canvas.style.width = `${Math.max(columns * scale, LEAST_PX)}px`;
  canvas.style.height = `${Math.max(rows * scale, LEAST_PX)}px`;
  canvas.getContext('2d')?.putImageData(imageOf(dots, rows, columns), 0, 0);
  canvas.setAttribute('role', 'img');
  const nans = dots.filter(dot => dot === NAN_DOT).length;
  canvas.setAttribute('aria-label', `${name} as an image of ${rows} x ${columns} dots, ${rangeText(picture, nans)}`);
  const said = element('span', 'tensor-said');
  canvas.addEventListener('pointermove', event => {
    const row = Math.floor((event.offsetY / canvas.clientHeight) * rows);
    const column = Math.floor((event.offsetX / canvas.clientWidth) * columns);
    if (row >= 0 && row < rows && column >= 0 && column < columns) {
      setText(said, dotText(picture, row, column, dots[row * columns + column]));
    }
  });
  canvas.addEventListener('pointerleave', () => { setText(said, ''); });
  const legend = legendOf(picture, nans);
  legend.append(said);
  box.append(legend, canvas);
  return box;
}

function imageOf(dots: Uint8Array, rows: number, columns: number): ImageData {
  const image = new ImageData(columns, rows);
  dots.forEach((dot, i) => { image.data.set([...colourOf(dot), 255], 4 * i); });
  return image;
}

function rangeText({ least, greatest }: Picture, nans: number): string {
  const range = least === null || greatest === null ? 'nothing finite' : `from ${shortNumber(least)} to ${shortNumber(greatest)}`;
  return nans ? `${range}, ${nans} with NaN` : range;
}

function legendOf({ least, greatest }: Picture, nans: number): HTMLElement {
  const legend = element('figcaption', 'tensor-legend');
  if (least !== null && greatest !== null) {
    const bar = element('span', 'tensor-bar');
    bar.style.background = `linear-gradient(to right, ${STOPS.map(stop => `rgb(${stop.join(' ')})`).join(', ')})`;
    legend.append(element('span', '', shortNumber(least)), bar, element('span', '', shortNumber(greatest)));
  }
  if (nans) {
    const mark = element('span', 'tensor-nan');
    mark.style.background = `rgb(${NAN_COLOUR.join(' ')})`;
    legend.append(mark, element('span', '', `NaN (${nans} ${nans === 1 ? 'dot' : 'dots'})`));
  }
  return legend;
}
