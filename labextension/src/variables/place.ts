/** Which part of a tensor is shown, and how that is said. */

import { shapeText } from './told.js';

/** Of a tensor on a rank: at `indices` of the dims before the last two, from this row and column on. */
export interface Place {
  rank: number;
  indices: number[];
  row: number;
  column: number;
}

/** A tensor as a rank has it; `whole` is the shape of all, where it has a part. */
export interface LocalTensor {
  shape: number[];
  dtype: string;
  device: string;
  whole: number[] | null;
}

/** Its numbers from `row` and `column` on, as the rank writes them. */
export interface Window extends LocalTensor {
  indices: number[];
  row: number;
  column: number;
  numbers: string[][];
}

/** So many a window has at most. */
export const ROWS = 200;
export const COLUMNS = 50;

/** How many rows and columns the last two dims have; one dim is a row, and none a number. */
export function planeOf(shape: readonly number[]): { rows: number; columns: number } {
  return { rows: shape.at(-2) ?? 1, columns: shape.at(-1) ?? 1 };
}

/** Where the next page begins, or the one before; null: there is none. */
export function turned(at: number, step: 1 | -1, page: number, size: number): number | null {
  const next = at + step * page;
  if (step > 0) {
    return next < size ? next : null;
  }
  return at > 0 ? Math.max(0, next) : null;
}

/** A number that was typed, as near as there is one. */
export function typed(text: string, size: number): number {
  const number = Number.parseInt(text, 10);
  return Number.isNaN(number) ? 0 : Math.min(Math.max(number, 0), Math.max(size - 1, 0));
}

/** "[64, 32] float32 on cpu"; of a part, of what it is one. */
export function headText({ shape, dtype, device, whole }: LocalTensor): string {
  const part = whole ? `: the part on this rank of ${shapeText(whole)}` : '';
  return `${shapeText(shape)} ${dtype} on ${device}${part}`;
}

/** "rows 200-399 of 1,000, columns 0-49 of 64" */
export function windowText({ shape, row, column, numbers }: Window): string {
  const { rows, columns } = planeOf(shape);
  if (numbers.length === 0 || numbers[0].length === 0) {
    return 'empty';
  }
  const across = spanText('column', column, numbers[0].length, columns);
  return shape.length < 2 ? across : `${spanText('row', row, numbers.length, rows)}, ${across}`;
}

function spanText(word: string, first: number, count: number, size: number): string {
  const all = size.toLocaleString('en');
  return count === 1 ? `${word} ${first} of ${all}` : `${word}s ${first}-${first + count - 1} of ${all}`;
}

/** Whether a number, as it is written, is none. */
export function isOdd(text: string): boolean {
  return text === 'nan' || text.endsWith('inf');
}
