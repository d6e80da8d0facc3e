// @ts-check
// What each rank did in each of the last 300 seconds: a ring of letters. Rule of the file: a second costs one letter a rank.

import { STRIP_SECONDS } from './protocol.js';

const NOT_KNOWN = 46; // "."
const SEVERITY = [46, 115, 99, 112, 122, 101, 120]; // . s c p z e x

/** The letters of all ranks; a second is one block of `size` bytes. */
export class Strips {
  /** @param {number} size ranks */
  constructor(size) {
    this.size = size;
    /** How many seconds have ended since the feed began. */
    this.seconds = 0;
    /** The first second of which anything is known. */
    this.first = Infinity;
    this.ring = new Uint8Array(size * STRIP_SECONDS).fill(NOT_KNOWN);
    this.counts = new Uint32Array(10);
  }

  /**
   * Take whole strips, the last letter of each for the second that ended last.
   * @param {string[]} strips
   * @param {number} seconds
   */
  replace(strips, seconds) {
    this.ring.fill(NOT_KNOWN);
    this.seconds = seconds;
    this.first = Infinity;
    const ranks = Math.min(this.size, strips.length);
    for (let rank = 0; rank < ranks; rank++) {
      const strip = String(strips[rank]).slice(-STRIP_SECONDS);
      const first = seconds - strip.length;
      const known = strip.search(/[^.]/);
      if (known >= 0) this.first = Math.min(this.first, first + known);
      for (let i = Math.max(0, -first); i < strip.length; i++) {
        this.ring[this.place(first + i) + rank] = strip.charCodeAt(i);
      }
    }
  }

  /**
   * Take the letters of the second that ended last. Seconds in between are not known.
   * @param {string} letters one a rank
   * @param {number} seconds
   */
  push(letters, seconds) {
    if (seconds <= this.seconds) return;
    const from = Math.max(this.seconds, seconds - STRIP_SECONDS);
    for (let second = from; second < seconds; second++) {
      this.ring.fill(NOT_KNOWN, this.place(second), this.place(second) + this.size);
    }
    this.seconds = seconds;
    this.first = Math.min(this.first, seconds - 1);
    const start = this.place(seconds - 1);
    const ranks = Math.min(this.size, letters.length);
    for (let rank = 0; rank < ranks; rank++) this.ring[start + rank] = letters.charCodeAt(rank);
  }

  /** How many seconds back anything is known. */
  get known() {
    return Math.max(0, Math.min(STRIP_SECONDS, this.seconds - this.first));
  }

  /**
   * The letter (as a character code) of a rank, `ago` seconds before the last one that ended.
   * @param {number} rank
   * @param {number} ago
   */
  letter(rank, ago) {
    const second = this.seconds - 1 - ago;
    if (second < 0 || ago >= STRIP_SECONDS) return NOT_KNOWN;
    return this.ring[this.place(second) + rank];
  }

  /**
   * One letter for several ranks: the worst, or the median of how busy they were.
   * @param {ArrayLike<number>} ranks
   * @param {number} ago
   */
  worst(ranks, ago) {
    if (ranks.length === 1) return this.letter(ranks[0], ago);
    let worst = NOT_KNOWN;
    let digits = 0;
    const { counts } = this;
    counts.fill(0);
    for (let i = 0; i < ranks.length; i++) {
      const letter = this.letter(ranks[i], ago);
      if (letter >= 48 && letter <= 57) {
        counts[letter - 48]++;
        digits++;
      } else if (severity(letter) > severity(worst)) worst = letter;
    }
    return severity(worst) > 2 || !digits ? worst : median(counts, digits);
  }

  /** @param {number} second */
  place(second) {
    return (second % STRIP_SECONDS) * this.size;
  }
}

/** Rows of ranks, a letter a second; each second is folded once. */
export class FoldedStrips {
  /** @param {Strips} strips @param {number[][]} rows */
  constructor(strips, rows) {
    this.strips = strips;
    this.rows = rows;
    this.folded = new Strips(rows.length);
  }

  /** Fold the seconds that have ended since. */
  update() {
    const { strips, rows, folded } = this;
    const from = Math.max(folded.seconds, strips.seconds - STRIP_SECONDS);
    for (let second = from; second < strips.seconds; second++) {
      const ago = strips.seconds - 1 - second;
      const start = folded.place(second);
      for (let row = 0; row < rows.length; row++) {
        const isKnown = second >= strips.first;
        folded.ring[start + row] = isKnown ? strips.worst(rows[row], ago) : NOT_KNOWN;
      }
    }
    folded.seconds = strips.seconds;
  }

  /** @param {number} row @param {number} ago */
  letter(row, ago) {
    return this.folded.letter(row, ago);
  }
}

/** @param {number} letter */
function severity(letter) {
  return SEVERITY.indexOf(letter);
}

/** @param {Uint32Array} counts of the digits 0-9 @param {number} total */
function median(counts, total) {
  let seen = 0;
  for (let digit = 0; digit < 9; digit++) {
    seen += counts[digit];
    if (seen * 2 >= total) return 48 + digit;
  }
  return 57;
}

/** What a letter means. @param {number} letter a character code */
export function letterText(letter) {
  if (letter >= 49 && letter <= 56) return `busy ${letter - 48}0 %`;
  /** @type {Record<string, string>} */
  const words = {
    0: 'idle',
    9: 'busy',
    c: 'in a collective',
    p: 'paused',
    s: 'starting',
    z: 'silent',
    e: 'raised an exception',
    x: 'ended'
  };
  return words[String.fromCharCode(letter)] ?? 'not known';
}
