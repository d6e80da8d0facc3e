/** Lines of a log as they are drawn: those in sight only, wrapped or not. Whatever ranks wrote is text. */

import { element, type LogLine } from '../front.js';
import { clockText, hits, type LogLines, plain } from './loglines.js';

const LINE_PX = 18;
const NEAR_PX = 24;
const MOST_CHARS = 10_000;

export class LogView {
  readonly node = element('div', 'log-box');
  /** Told when the user leaves the end, or comes back to it. */
  onFollow: () => void = () => undefined;
  isFollowing = true;
  /** Whether each line tells when it came; what is drawn already changes with the next `layOut`. */
  hasTimes = false;
  readonly #space = element('div', 'log-space');
  readonly #rows = element('div', 'log-rows');
  readonly #heights = new Heights();
  readonly #probe = element('span', 'log-probe', '0'.repeat(100));
  readonly #watch = new ResizeObserver(() => { this.layOut(); });
  #isWrapped = false;
  #columns = 0;
  #marked = -1;

  constructor(private readonly lines: LogLines) {
    this.node.tabIndex = 0;
    this.node.setAttribute('role', 'log');
    this.node.setAttribute('aria-live', 'off');
    this.node.append(this.#space, this.#probe);
    this.#space.append(this.#rows);
    this.node.addEventListener('scroll', () => { this.#onScroll(); }, { passive: true });
    this.node.addEventListener('keydown', event => { this.#onKey(event); });
    this.#watch.observe(this.node);
  }

  dispose(): void {
    this.#watch.disconnect();
  }

  set wrap(isWrapped: boolean) {
    this.#isWrapped = isWrapped;
    this.node.classList.toggle('mnb-mod-wrap', isWrapped);
    this.layOut();
  }

  /** New lines below. */
  append(news: readonly LogLine[]): void {
    this.#heights.append(news.map(line => this.#linesOf(line)));
    this.#settle();
  }

  /** All lines again. */
  layOut(): void {
    this.#columns = this.#isWrapped ? this.#columnsNow() : 0;
    this.#heights.clear();
    this.#heights.append(this.lines.shown.map(line => this.#linesOf(line)));
    this.#settle();
  }

  toEnd(): void {
    this.isFollowing = true;
    this.#settle();
    this.onFollow();
  }

  /** Bring a line into the middle, and mark it. */
  show(index: number): void {
    this.isFollowing = false;
    this.#marked = index;
    const middle = this.#heights.start(index) * LINE_PX - this.node.clientHeight / 2;
    this.node.scrollTop = Math.max(0, middle);
    this.#draw();
    this.onFollow();
  }

  /** The line that a search goes on from. */
  get place(): number {
    return this.#marked >= 0 ? this.#marked : this.#heights.at(this.node.scrollTop / LINE_PX);
  }

  /** The line that a search went to last; -1: none. */
  get marked(): number {
    return this.#marked;
  }

  forgetPlace(): void {
    this.#marked = -1;
  }

  #settle(): void {
    this.#space.style.height = `${this.#heights.total * LINE_PX}px`;
    if (this.isFollowing) {
      this.node.scrollTop = this.node.scrollHeight;
    }
    this.#draw();
  }

  #draw(): void {
    const { scrollTop, clientHeight } = this.node;
    const { shown } = this.lines;
    const [first, last] = this.#heights.between(scrollTop / LINE_PX, (scrollTop + clientHeight) / LINE_PX);
    const rows = shown.slice(first, last).map((line, i) => this.#row(line, first + i));
    this.#rows.style.transform = `translateY(${shown.length ? this.#heights.start(first) * LINE_PX : 0}px)`;
    this.#rows.replaceChildren(...rows);
  }

  #row([, , rank, stream, level, text, at]: LogLine, index: number): HTMLElement {
    const row = element('div', 'log-line');
    row.dataset.level = level || (stream === 'stderr' ? 'stderr' : '');
    row.classList.toggle('mnb-mod-marked', index === this.#marked);
    const label = element('span', 'log-rank', `[${rank}]`);
    label.style.setProperty('--mnb-hue', String(90 + ((rank * 103) % 240)));
    if (this.hasTimes) {
      row.append(element('span', 'log-time', clockText(at)));
    }
    row.append(label, this.#textNode(plain(text).slice(0, MOST_CHARS)));
    return row;
  }

  #textNode(text: string): HTMLElement {
    const node = element('span', 'log-text');
    let end = 0;
    for (const [from, to] of hits(text, this.lines.search)) {
      node.append(text.slice(end, from), element('mark', '', text.slice(from, to)));
      end = to;
    }
    node.append(text.slice(end));
    return node;
  }

  #linesOf(line: LogLine): number {
    const { length } = plain(line[5]);
    return this.#columns ? Math.max(1, Math.ceil(Math.min(length, MOST_CHARS) / this.#columns)) : 1;
  }

  /** Characters in a line of the box, beside the rank and the time. */
  #columnsNow(): number {
    const width = this.#probe.getBoundingClientRect().width / 100;
    const room = this.node.clientWidth - (this.hasTimes ? 20 : 8) * width - 16;
    return width > 0 ? Math.max(20, Math.floor(room / width)) : 0;
  }

  #onScroll(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.node;
    const isAtEnd = scrollTop + clientHeight >= scrollHeight - NEAR_PX;
    if (isAtEnd !== this.isFollowing) {
      this.isFollowing = isAtEnd;
      this.onFollow();
    }
    this.#draw();
  }

  #onKey(event: KeyboardEvent): void {
    if (event.key === 'End') {
      this.toEnd();
      event.preventDefault();
    }
  }
}

/** Where rows of a long list stand, so that only those in sight are drawn. */
export class Heights {
  /** `ends[i]`: where row i ends, in rows of one line. */
  #ends: number[] = [];

  get count(): number {
    return this.#ends.length;
  }

  /** In lines. */
  get total(): number {
    return this.#ends.at(-1) ?? 0;
  }

  /** Rows of so many lines each come below. */
  append(lines: Iterable<number>): void {
    let end = this.total;
    for (const one of lines) {
      end += one;
      this.#ends.push(end);
    }
  }

  clear(): void {
    this.#ends = [];
  }

  /** The first line of a row. */
  start(row: number): number {
    return row === 0 ? 0 : this.#ends[row - 1];
  }

  /** The row that has this line; the last one for lines below. */
  at(line: number): number {
    let low = 0;
    let high = Math.max(0, this.#ends.length - 1);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#ends[middle] > line) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  /** [first, after the last] of the rows between two lines, and some more on both sides. */
  between(from: number, to: number, more = 8): [number, number] {
    const first = Math.max(0, this.at(Math.max(0, from)) - more);
    return [first, Math.min(this.count, this.at(Math.max(0, to)) + 1 + more)];
  }
}
