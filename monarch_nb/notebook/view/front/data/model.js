// @ts-check
// The meshes as the kernel last told them. Rule of the file: no DOM, no timer; a column for each property, so that 1 024 ranks are cheap.

import { runs } from './protocol.js';
import { Strips } from './strips.js';
import { countsText } from './words.js';

/**
 * @typedef {import("./protocol.js").MeshPart} MeshPart
 * @typedef {import("./protocol.js").UsageName} UsageName
 * @typedef {{ranks: Set<number>, usage: boolean, strip: boolean, failures: boolean, curves: Set<string>, actors: boolean, fresh: boolean}} MeshChange
 * @typedef {{all: boolean, meshes: Map<string, MeshChange | null>, hosts: boolean, cell: boolean}} Change `null`: that mesh is gone
 */

/** @type {UsageName[]} */
const USAGE = ['cpu', 'rss', 'queue', 'calls', 'failed', 'beat', 'gpu', 'gpu_mem'];

/** One mesh, by rank. */
export class Mesh {
  /** @param {string} name @param {string[]} labels @param {number[]} sizes */
  constructor(name, labels, sizes) {
    this.name = name;
    this.labels = labels;
    this.sizes = sizes;
    this.size = sizes.reduce((a, b) => a * b, 1);
    /** @type {string | null} */
    this.ended = null;
    this.states = new Array(this.size).fill('starting');
    this.whats = new Array(this.size).fill('');
    this.details = new Array(this.size).fill('');
    this.sinces = new Float64Array(this.size);
    this.hosts = new Int32Array(this.size).fill(-1);
    /** @type {(number | null)[]} */
    this.pids = new Array(this.size).fill(null);
    /** @type {Map<UsageName, Float64Array>} NaN: not known */
    this.columns = new Map();
    this.strips = new Strips(this.size);
    /** @type {Map<string, import("./protocol.js").CurvePoint[]>} */
    this.curves = new Map();
    /** Those that are kept, by number. @type {Map<number, import("./protocol.js").Run>} */
    this.runs = new Map();
    /** @type {import("./protocol.js").Failure[]} */
    this.failures = [];
    /** Failures that are over. @type {import("./protocol.js").PastFailure[]} */
    this.past = [];
    /** @type {Map<number, string> | null} by rank, made when it is asked for */
    this.headlines = null;
    /** @type {import("./protocol.js").ActorRow[]} */
    this.actors = [];
  }

  /** @param {number} rank @returns {string} */
  state(rank) {
    return this.states[rank];
  }

  /** @param {number} rank @returns {string} what it runs */
  what(rank) {
    return this.whats[rank];
  }

  /** @param {number} rank @returns {string} why it ended */
  detail(rank) {
    return this.details[rank];
  }

  /** What it raised last, where that is how it is now; "" otherwise. @param {number} rank @returns {string} */
  headline(rank) {
    if (this.states[rank] !== 'failed') return '';
    this.headlines ??= headlinesOf(this.failures);
    return this.headlines.get(rank) ?? '';
  }

  /** @param {number} rank since when, ms on the feed clock; 0 is not known */
  since(rank) {
    return this.sinces[rank];
  }

  /** @param {number} rank an index into the model's hosts, -1 is not known */
  host(rank) {
    return this.hosts[rank];
  }

  /** @param {number} rank */
  pid(rank) {
    return this.pids[rank] ?? null;
  }

  /**
   * Percent, MiB or counts; NaN is not known.
   * @param {number} rank
   * @returns {Record<UsageName, number>}
   */
  usage(rank) {
    const pairs = USAGE.map(name => [name, this.columns.get(name)?.[rank] ?? NaN]);
    return Object.fromEntries(pairs);
  }

  /** @param {number} rank one coordinate an axis */
  coords(rank) {
    const found = new Array(this.sizes.length);
    for (let axis = this.sizes.length - 1, rest = rank; axis >= 0; axis--) {
      found[axis] = rest % this.sizes[axis];
      rest = Math.floor(rest / this.sizes[axis]);
    }
    return found;
  }

  /**
   * How many ranks have each state.
   * @param {Iterable<number>} [ranks] all if not given
   * @returns {Record<string, number>}
   */
  counts(ranks) {
    /** @type {Record<string, number>} */
    const counts = {};
    const add = (/** @type {string} */ state) => (counts[state] = (counts[state] ?? 0) + 1);
    if (ranks) for (const rank of ranks) add(this.states[rank]);
    else this.states.forEach(add);
    return counts;
  }

  /** @param {Iterable<number>} [ranks] "8 ranks: 7 busy, 1 failed" */
  summary(ranks) {
    const counts = this.counts(ranks);
    const total = Object.values(counts).reduce((a, b) => a + b, 0);
    const told = total ? `: ${countsText(counts)}` : '';
    return `${total} ${total === 1 ? 'rank' : 'ranks'}${told}`;
  }

  /**
   * Take what the kernel tells. False: it builds on what is not here.
   * @param {MeshPart} part
   * @param {number} seconds
   * @param {MeshChange} change is filled
   */
  take(part, seconds, change) {
    if (part.ended !== undefined) this.ended = part.ended;
    for (const [ranks, host] of part.hosts ?? []) {
      for (const rank of runs(ranks)) this.hosts[rank] = host;
    }
    if (part.pids) this.pids = part.pids;
    for (const row of part.ranks ?? []) this.takeRow(row, change.ranks);
    if (part.usage) this.takeUsage(part.usage);
    change.usage ||= Boolean(part.usage);
    if (part.strips) this.strips.replace(part.strips, seconds);
    if (typeof part.strip === 'string') this.strips.push(part.strip, seconds);
    change.strip ||= Boolean(part.strips) || typeof part.strip === 'string';
    if (part.failures) {
      this.failures = part.failures;
      this.headlines = null;
    }
    if (part.past) this.past = part.past;
    change.failures ||= Boolean(part.failures || part.past);
    if (part.actors) this.actors = part.actors;
    change.actors ||= Boolean(part.actors);
    this.takeRuns(part.runs ?? {}, change.curves);
    return this.takeCurves(part.curves ?? {}, change.curves);
  }

  /** @param {NonNullable<MeshPart["runs"]>} runs @param {Set<string>} changed */
  takeRuns(runs, changed) {
    for (const [key, run] of Object.entries(runs)) {
      const before = this.runs.get(Number(key));
      if (run) this.runs.set(Number(key), run);
      else this.runs.delete(Number(key));
      for (const each of [before, run]) {
        for (const name of [...(each?.current ?? []), ...Object.keys(each?.curves ?? {})]) {
          changed.add(name);
        }
      }
    }
  }

  /** @param {import("./protocol.js").RankRow} row @param {Set<number>} changed */
  takeRow([ranks, state, what, detail, since], changed) {
    let i = 0;
    for (const rank of runs(ranks)) {
      if (rank >= this.size) break;
      this.states[rank] = String(state);
      this.whats[rank] = String(what ?? '');
      this.details[rank] = String(detail ?? '');
      this.sinces[rank] = Array.isArray(since) ? since[i] : since;
      changed.add(rank);
      i++;
    }
  }

  /** @param {import("./protocol.js").UsageRows} rows */
  takeUsage(rows) {
    const ranks = runs(rows.ranks);
    for (const name of USAGE) {
      const values = rows[name];
      if (!Array.isArray(values)) continue;
      const column = this.columns.get(name) ?? new Float64Array(this.size).fill(NaN);
      this.columns.set(name, column);
      ranks.forEach((rank, i) => (column[rank] = values[i] ?? NaN));
    }
  }

  /** @param {NonNullable<MeshPart["curves"]>} curves @param {Set<string>} changed */
  takeCurves(curves, changed) {
    for (const [name, { from, points }] of Object.entries(curves)) {
      const known = this.curves.get(name) ?? [];
      if (from > known.length) return false;
      this.curves.set(name, [...known.slice(0, from), ...points]);
      changed.add(name);
    }
    return true;
  }
}

/** The newest of each rank. @param {import("./protocol.js").Failure[]} failures @returns {Map<number, string>} */
function headlinesOf(failures) {
  const pairs = [...failures]
    .reverse()
    .flatMap(({ ranks, headline }) =>
      runs(ranks).map(rank => /** @type {[number, string]} */ ([rank, headline]))
    );
  return new Map(pairs);
}

/** @returns {MeshChange} */
function noChange() {
  return {
    ranks: new Set(),
    usage: false,
    strip: false,
    failures: false,
    curves: new Set(),
    actors: false,
    fresh: false
  };
}

/** Everything that the kernel tells; applies states and deltas. */
export class Model {
  /** @param {() => number} [now] milliseconds that only go forward */
  constructor(now = () => performance.now()) {
    this.now = now;
    /** @type {Map<string, Mesh>} */
    this.meshes = new Map();
    /** @type {import("./protocol.js").Host[]} */
    this.hosts = [];
    /** @type {import("./protocol.js").Cell | null} */
    this.cell = null;
    /** The mesh that `%%mesh` means. @type {string | null} */
    this.current = null;
    /** @type {import("./protocol.js").Job[]} */
    this.jobs = [];
    /** The number of the last update; -1 before the first. */
    this.n = -1;
    this.seconds = 0;
    /** @type {number | null} */
    this.offset = null;
    /** @type {Set<(change: Change) => void>} */
    this.listeners = new Set();
  }

  /** The feed clock now, in ms. */
  get clock() {
    return this.offset === null ? 0 : this.now() + this.offset;
  }

  /**
   * Tell what has changed, after each update.
   * @param {(change: Change) => void} listener
   * @returns {() => void} undo
   */
  onChange(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /**
   * "stale": it builds on an update that is not here, so say `hello` again.
   * @param {import("./protocol.js").StateMessage | import("./protocol.js").DeltaMessage} message
   * @returns {"ok" | "stale" | "ignored"}
   */
  apply(message) {
    if (message.type === 'state') this.begin();
    else if (this.n < 0 || message.n <= this.n) return 'ignored';
    else if (message.base !== this.n) return 'stale';
    this.seconds = message.seconds ?? this.seconds;
    this.setClock(message.at);
    if (message.hosts) this.hosts = message.hosts;
    if (message.cell !== undefined) this.cell = message.cell;
    if (message.current !== undefined) this.current = message.current;
    if (message.jobs) this.jobs = message.jobs;
    const all = message.type === 'state';
    /** @type {Change} */
    const change = {
      all,
      meshes: new Map(),
      hosts: Boolean(message.hosts),
      cell: message.cell !== undefined
    };
    const fits = Object.entries(message.meshes ?? {}).every(([name, part]) =>
      this.takeMesh(name, part, change)
    );
    this.n = message.n;
    for (const listener of [...this.listeners]) listener(change);
    return fits ? 'ok' : 'stale';
  }

  begin() {
    this.meshes = new Map();
    this.offset = null;
  }

  /** @param {string} name @param {MeshPart | null} part @param {Change} change */
  takeMesh(name, part, change) {
    if (part === null) {
      this.meshes.delete(name);
      change.meshes.set(name, null);
      return true;
    }
    const told = noChange();
    change.meshes.set(name, told);
    if (part.labels && part.sizes) {
      this.meshes.set(name, new Mesh(name, part.labels, part.sizes));
      told.fresh = true;
    }
    return this.meshes.get(name)?.take(part, this.seconds, told) ?? false;
  }

  /** The message that was the fastest on its way tells best; so ages never go back. @param {number} at */
  setClock(at) {
    const offset = at - this.now();
    this.offset = this.offset === null ? offset : Math.max(this.offset, offset);
  }
}
