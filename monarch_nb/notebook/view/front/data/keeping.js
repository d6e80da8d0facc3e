// @ts-check
// A mesh as it is now, to be kept without its kernel: a `state` message. Rule of the file: what `parse` lets in, and no more than a notebook should carry.

import { STRIP_SECONDS, runsText } from './protocol.js';

/** Of more ranks than this the seconds are not kept: a letter for each of 300. */
const MOST_STRIPS = 256;

/**
 * @param {import("./model.js").Model} model
 * @param {import("./model.js").Mesh} mesh of that model, or one that has left it
 * @returns {import("./protocol.js").StateMessage}
 */
export function stateOf(model, mesh) {
  const { labels, sizes, ended, pids, failures, past, actors } = mesh;
  const part = {
    ...{ labels, sizes, ended, pids, failures, past, actors },
    hosts: grouped(mesh, rank => mesh.host(rank)),
    ranks: rowsOfStates(mesh),
    strips: mesh.size <= MOST_STRIPS ? stripsOf(mesh) : [],
    curves: Object.fromEntries([...mesh.curves].map(([name, points]) => [name, { from: 0, points }])),
    runs: Object.fromEntries(mesh.runs)
  };
  return {
    ...{ v: 1, type: 'state', to: '', n: 0, cell: null, current: null, jobs: [] },
    at: Math.round(model.clock),
    seconds: mesh.strips.seconds,
    hosts: model.hosts,
    meshes: { [mesh.name]: part }
  };
}

/**
 * Ranks with the same value together.
 * @template T
 * @param {import("./model.js").Mesh} mesh
 * @param {(rank: number) => T} valueOf
 * @returns {[string, T][]}
 */
function grouped(mesh, valueOf) {
  /** @type {Map<string, {value: T, ranks: number[]}>} */
  const groups = new Map();
  for (let rank = 0; rank < mesh.size; rank++) {
    const value = valueOf(rank);
    const key = JSON.stringify(value);
    const group = groups.get(key) ?? { value, ranks: [] };
    groups.set(key, group);
    group.ranks.push(rank);
  }
  return [...groups.values()].map(({ value, ranks }) => [runsText(ranks), value]);
}

/** @param {import("./model.js").Mesh} mesh @returns {import("./protocol.js").RankRow[]} */
function rowsOfStates(mesh) {
  const told = (/** @type {number} */ rank) =>
    /** @type {const} */ ([mesh.state(rank), mesh.what(rank), mesh.detail(rank), mesh.since(rank)]);
  return grouped(mesh, told).map(([ranks, row]) => [ranks, ...row]);
}

/** @param {import("./model.js").Mesh} mesh */
function stripsOf({ size, strips }) {
  const seconds = Math.min(strips.known, STRIP_SECONDS);
  return Array.from({ length: size }, (_, rank) =>
    Array.from({ length: seconds }, (_, i) =>
      String.fromCharCode(strips.letter(rank, seconds - 1 - i))
    ).join('')
  );
}
