// @ts-check
// What is said of ranks: a word, a shape and a colour for each state, lines and sentences. Rule of the file: plain text, and nobody needs to see colours.

import { cutText } from './protocol.js';

/**
 * @typedef {"dot" | "full" | "diamond" | "dashed" | "bars" | "triangle" | "hollow" | "bang" | "cross"} Shape
 * @typedef {{word: string, shape: Shape, colour: string}} Mark `colour` names a CSS variable, `--mnb-<colour>`
 */

/** @type {Record<string, Mark>} in the order of summaries and legends */
const MARKS = {
  busy: { word: 'busy', shape: 'full', colour: 'busy' },
  collective: { word: 'in a collective', shape: 'diamond', colour: 'collective' },
  idle: { word: 'idle', shape: 'dot', colour: 'idle' },
  starting: { word: 'starting', shape: 'dashed', colour: 'grey' },
  paused: { word: 'paused', shape: 'bars', colour: 'paused' },
  silent: { word: 'silent', shape: 'triangle', colour: 'silent' },
  leaving: { word: 'leaving', shape: 'hollow', colour: 'grey' },
  stopped: { word: 'stopped', shape: 'hollow', colour: 'grey' },
  failed: { word: 'failed', shape: 'bang', colour: 'dead' },
  exited: { word: 'exited', shape: 'cross', colour: 'dead' },
  unreachable: { word: 'unreachable', shape: 'cross', colour: 'dead' }
};

/** @type {Mark} what a newer kernel may say */
const UNKNOWN = { word: 'not known', shape: 'dashed', colour: 'grey' };

/** All states, in the order of summaries. */
export function stateNames() {
  return Object.keys(MARKS);
}

/** @param {string} state @returns {Mark} */
export function markOf(state) {
  return Object.hasOwn(MARKS, state) ? MARKS[state] : UNKNOWN;
}

/** Whether a rank of this state runs something for which a time is worth telling. @param {string} state */
export function isWorking(state) {
  return state === 'busy' || state === 'collective' || state === 'paused';
}

/** Whether a rank of this state is lost until it is healed. @param {string} state */
export function isDead(state) {
  return markOf(state).shape === 'cross';
}

/** "7 busy, 1 failed" @param {Record<string, number>} counts by state */
export function countsText(counts) {
  return [...new Set([...stateNames(), ...Object.keys(counts)])]
    .filter(state => counts[state])
    .map(state => `${counts[state]} ${markOf(state).word}`)
    .join(', ');
}

/** An age as people say it: "3 s", "4:05", "2 h 10 min", "3 d 4 h". @param {number} ms */
export function ageText(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`;
  const h = Math.floor(s / 3600);
  return h < 48
    ? `${h} h ${Math.floor((s % 3600) / 60)} min`
    : `${Math.floor(h / 24)} d ${h % 24} h`;
}

/** When something was, on this page's clock: "14:03:22", with the day where that is another. @param {number} ms since 1970 */
export function dayText(ms) {
  const then = new Date(ms);
  const time = then.toTimeString().slice(0, 8);
  const isToday = then.toDateString() === new Date().toDateString();
  return isToday ? time : `${then.toLocaleDateString()} ${time}`;
}

const OLD_MS = 10_000;

/** When something was looked at, and how long ago where it may not be so any more. @param {Date} taken @param {number} now */
export function takenText(taken, now) {
  const age = now - taken.getTime();
  const ago = age < OLD_MS ? '' : `, ${ageText(age)} ago`;
  return `taken ${taken.toTimeString().slice(0, 8)}${ago}`;
}

/** A quantity of MiB: "312 MiB", "79.6 GiB". @param {number} mib */
export function memoryText(mib) {
  return mib < 1024 ? `${Math.round(mib)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

/** "rank 3", "ranks 0-3,7" @param {string} ranks as runs */
export function whoText(ranks) {
  return `rank${/\D/.test(ranks) ? 's' : ''} ${cutText(ranks, 60)}`;
}

/** @typedef {import("./model.js").Mesh} Mesh */

/** "hosts 0, gpus 3" @param {Mesh} mesh @param {number} rank */
export function coordsText(mesh, rank) {
  const coords = mesh.coords(rank);
  return mesh.labels.map((label, axis) => `${label} ${coords[axis]}`).join(', ');
}

/** How long it has been as it is; "" if nobody knows. @param {Mesh} mesh @param {number} rank @param {number} clock */
export function sinceText(mesh, rank, clock) {
  const since = mesh.since(rank);
  return since > 0 ? ageText(clock - since) : '';
}

/** "busy for 4 s" @param {Mesh} mesh @param {number} rank @param {number} clock */
export function stateText(mesh, rank, clock) {
  const since = sinceText(mesh, rank, clock);
  return markOf(mesh.state(rank)).word + (since && ` for ${since}`);
}

/** What it runs, why it ended, or what its last cell raised. @param {Mesh} mesh @param {number} rank */
export function matterOf(mesh, rank) {
  return mesh.detail(rank) || mesh.what(rank) || mesh.headline(rank);
}

/** "GPU 97 %, 41.2 GiB" and "CPU 100 %, 312 MiB", as far as known. @param {Mesh} mesh @param {number} rank */
export function usageTexts(mesh, rank) {
  const { cpu, rss, gpu, gpu_mem } = mesh.usage(rank);
  const pair = (
    /** @type {string} */ name,
    /** @type {number} */ share,
    /** @type {number} */ mib
  ) => {
    if (mib === 0) return ''; // not looked at yet
    const parts = [isNaN(share) ? '' : `${share} %`, isNaN(mib) ? '' : memoryText(mib)];
    const known = parts.filter(Boolean).join(', ');
    return known && `${name} ${known}`;
  };
  return [pair('GPU', gpu, gpu_mem), pair('CPU', cpu, rss)].filter(Boolean);
}

/** The lines of a tooltip. @param {Mesh} mesh @param {number} rank @param {number} clock */
export function rankLines(mesh, rank, clock) {
  const lines = [`rank ${rank}`, coordsText(mesh, rank), stateText(mesh, rank, clock)];
  const queue = mesh.usage(rank).queue;
  if (queue > 0) lines.push(`${queue} waiting in its queue`);
  return [...lines, cutText(matterOf(mesh, rank), 120), ...usageTexts(mesh, rank)].filter(Boolean);
}

/** The share of its device, or of its processors, 0 to 1; NaN is not known. @param {Mesh} mesh @param {number} rank */
export function loadOf(mesh, rank) {
  if (!isWorking(mesh.state(rank)) && mesh.state(rank) !== 'idle') return NaN;
  const gpu = mesh.columns.get('gpu')?.[rank] ?? NaN;
  const percent = isNaN(gpu) ? (mesh.columns.get('cpu')?.[rank] ?? NaN) : gpu;
  return Math.min(1, percent / 100);
}

/** The number of the notebook's cell that a text names, as in "In[5]". @param {string} text */
export function cellNumber(text) {
  const match = /\bIn ?\[(\d{1,7})\]/.exec(text);
  return match ? Number(match[1]) : null;
}
