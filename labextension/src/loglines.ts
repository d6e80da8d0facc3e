/** The lines of a log panel: kept up to a bound, chosen by rank, level and search. No DOM here. */

import type { LogLine } from './front.js';

export interface Choice {
  /** null: all */
  ranks: ReadonlySet<number> | null;
  level: '' | 'warning' | 'error';
  search: RegExp | null;
  /** Whether lines that the search does not find are left out. */
  only: boolean;
}

const EVERYTHING: Choice = { ranks: null, level: '', search: null, only: false };
const RANK_OF_LEVEL: Record<string, number> = { warning: 1, error: 2, critical: 2 };
// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])/g;

/** The text without what a terminal would read as colours and titles. */
export function plain(text: string): string {
  return text.includes('\x1b') ? text.replace(ESCAPES, '') : text;
}

/** A regular expression from what a user types; a sentence if it is none; null if it is empty. */
export function searchOf(text: string): RegExp | string | null {
  if (!text) {
    return null;
  }
  try {
    const found = new RegExp(text, /[A-Z]/.test(text) ? 'g' : 'gi');
    found.lastIndex = 0;
    return found.test('') ? null : found;
  } catch {
    return `"${text}" is no regular expression`;
  }
}

/** Where the search finds something in a text: [from, to], at most 200. */
export function hits(text: string, search: RegExp | null): [number, number][] {
  const found: [number, number][] = [];
  if (!search) {
    return found;
  }
  search.lastIndex = 0; // matchAll begins where the last test ended
  for (const match of text.matchAll(search)) {
    if (match[0].length > 0 && found.push([match.index, match.index + match[0].length]) >= 200) {
      break;
    }
  }
  return found;
}

/** Lines in the order of their numbers, the newest `most` of them. */
export class LogLines {
  /** Those that are chosen. */
  shown: LogLine[] = [];
  /** How many of the shown lines the search finds. */
  found = 0;
  /** How many lines went because there were too many. */
  gone = 0;
  /** How many lines the kernel has left out. */
  skipped = 0;
  /** Lines after this one are wanted: what is before was cleared, or was there before anybody looked. */
  base: number | null = null;
  #all: LogLine[] = [];
  #choice: Choice = EVERYTHING;

  constructor(private most: number) {}

  get size(): number {
    return this.#all.length;
  }

  get first(): number | null {
    return this.#all.length ? this.#all[0][0] : null;
  }

  get last(): number | null {
    return this.#all.at(-1)?.[0] ?? null;
  }

  get search(): RegExp | null {
    return this.#choice.search;
  }

  /** New lines. Returns those of them that are shown, or null where all must be drawn again. */
  append(lines: readonly LogLine[], skipped = 0): LogLine[] | null {
    this.skipped += skipped;
    this.base ??= skipped > 0 ? -1 : (lines.at(0)?.[0] ?? 0) - 1;
    const after = this.last ?? -1;
    const news = lines.filter(line => line[0] > after);
    this.#all.push(...news);
    if (this.#all.length > this.most * 1.1) {
      this.#cut();
      return null;
    }
    const shown = news.filter(line => this.#isChosen(line));
    this.shown.push(...shown);
    this.found += shown.filter(line => this.isFound(line)).length;
    return shown;
  }

  /** Lines from between and before those that are here. */
  merge(lines: readonly LogLine[]): void {
    const known = new Set(this.#all.map(([seq]) => seq));
    const news = lines.filter(([seq]) => !known.has(seq));
    const base = this.base ?? -1;
    this.skipped = Math.max(0, this.skipped - news.filter(([seq]) => seq > base).length);
    this.#all = [...news, ...this.#all].sort(([one], [other]) => one - other);
    this.#cut();
  }

  /** How many of the shown lines came after this one. */
  newer(seq: number): number {
    let count = 0;
    while (count < this.shown.length && this.shown[this.shown.length - 1 - count][0] > seq) {
      count++;
    }
    return count;
  }

  choose(choice: Choice): void {
    this.#choice = choice;
    this.#chooseAgain();
  }

  limit(most: number): void {
    this.most = most;
    this.#cut();
  }

  /** What is here now is not shown again. */
  clear(): void {
    this.base = this.last ?? this.base;
    this.#all = [];
    this.skipped = 0;
    this.gone = 0;
    this.#chooseAgain();
  }

  isFound(line: LogLine): boolean {
    const { search } = this.#choice;
    if (!search) {
      return false;
    }
    search.lastIndex = 0;
    return search.test(plain(line[5]));
  }

  #cut(): void {
    const surplus = this.#all.length - this.most;
    if (surplus > 0) {
      this.#all = this.#all.slice(surplus);
      this.gone += surplus;
    }
    this.#chooseAgain();
  }

  #chooseAgain(): void {
    this.shown = this.#all.filter(line => this.#isChosen(line));
    this.found = this.#choice.search ? this.shown.filter(line => this.isFound(line)).length : 0;
  }

  #isChosen(line: LogLine): boolean {
    const { ranks, level, search, only } = this.#choice;
    const weight = (name: string) => RANK_OF_LEVEL[name] ?? 0;
    return (
      (ranks === null || ranks.has(line[2])) &&
      weight(line[4]) >= weight(level) &&
      (!only || !search || this.isFound(line))
    );
  }
}
