/** The lines of a log panel: kept up to a bound, chosen by rank, level and search. No DOM here. */

import type { LogLine } from '../front.js';

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
    return found.test('') ? null : found;
  } catch {
    return `"${text}" is no regular expression`;
  }
}

/** "14:03:22.123" */
export function clockText(at: number): string {
  const time = new Date(at);
  return `${time.toTimeString().slice(0, 8)}.${String(time.getMilliseconds()).padStart(3, '0')}`;
}

/** Where the search finds something in a text: [from, to], at most 200. */
export function hits(text: string, search: RegExp | null): [number, number][] {
  const found: [number, number][] = [];
  if (!search) {
    return found;
  }
  for (const match of text.matchAll(search)) {
    if (match[0].length > 0 && found.push([match.index, match.index + match[0].length]) >= 200) {
      break;
    }
  }
  return found;
}

/** Where the kernel left lines out: after the line with one number, before that with another, null: any. */
export interface Gap {
  readonly after: number;
  before: number | null;
  count: number;
}

/** Lines in the order of their numbers, the newest `most` of them. */
export class LogLines {
  /** Those that are chosen. */
  shown: LogLine[] = [];
  /** How many of the shown lines the search finds. */
  found = 0;
  /** How many lines went because there were too many. */
  gone = 0;
  /** What the kernel has left out and may still have, oldest first. */
  gaps: Gap[] = [];
  #all: LogLine[] = [];
  /** The newest line that was cleared. */
  #cleared = -1;
  /** How many lines the kernel has left out and has no more. */
  #lost = 0;
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

  /** How many lines are not here because the kernel has left them out. */
  get skipped(): number {
    return this.gaps.reduce((sum, { count }) => sum + count, this.#lost);
  }

  /**
   * New lines, and how many the kernel has left out before them.
   * Returns those of them that are shown, or null where all must be drawn again.
   */
  append(lines: readonly LogLine[], skipped = 0): LogLine[] | null {
    const after = this.last ?? this.#cleared;
    const news = lines.filter(line => line[0] > after);
    if (news.length || !lines.length) {
      this.#leaveOut(after, news.at(0)?.[0] ?? null, skipped);
    }
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
    this.#all = [...news, ...this.#all].sort(([one], [other]) => one - other);
    this.#cut();
  }

  /** The newest lines that the kernel has before the end of a gap. */
  fill(gap: Gap, lines: readonly LogLine[]): void {
    const place = this.gaps.indexOf(gap);
    if (place < 0) {
      return;
    }
    const { after, before } = gap;
    const inside = lines.filter(([seq]) => seq > after && seq < (before ?? Infinity));
    gap.count = Math.max(0, gap.count - inside.length);
    const first = lines.at(0)?.[0] ?? -1;
    if (first > after) {
      gap.before = Math.min(first, before ?? Infinity);
    } else {
      this.gaps.splice(place, 1);
      this.#lost += lines.length ? 0 : gap.count;
    }
    this.merge(inside);
  }

  /** The how manieth of those that are found this shown line is, from 1; 0: it is none of them. */
  placeOfFound(index: number): number {
    const isFound = index >= 0 && index < this.shown.length && this.isFound(this.shown[index]);
    return isFound ? this.shown.slice(0, index + 1).filter(line => this.isFound(line)).length : 0;
  }

  /** How many of the shown lines came after this one. */
  newer(seq: number): number {
    return this.shown.length - 1 - this.shown.findLastIndex(line => line[0] <= seq);
  }

  choose(choice: Choice): void {
    this.#choice = choice;
    this.#chooseAgain();
  }

  limit(most: number): void {
    this.most = most;
    this.#cut();
  }

  /** What is here now is not shown again; -1: the next lines are of a kernel that counts from the start. */
  clear(newest = this.last ?? this.#cleared): void {
    this.#cleared = newest;
    this.#all = [];
    this.gaps = [];
    this.#lost = 0;
    this.gone = 0;
    this.#chooseAgain();
  }

  isFound(line: LogLine): boolean {
    const { search } = this.#choice;
    return search !== null && plain(line[5]).search(search) >= 0;
  }

  #cut(): void {
    const surplus = this.#all.length - this.most;
    if (surplus > 0) {
      this.#all = this.#all.slice(surplus);
      this.gone += surplus;
      const first = this.first ?? 0;
      this.gaps = this.gaps.filter(({ before }) => before === null || before > first);
    }
    this.#chooseAgain();
  }

  #leaveOut(after: number, before: number | null, count: number): void {
    const newest = this.gaps.at(-1);
    if (newest?.before === null) {
      newest.before = before;
      newest.count += count;
    } else if (count > 0) {
      this.gaps.push({ after, before, count });
    }
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
