/** Where rows of a long list stand, so that only those in sight are drawn. No DOM here. */
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
