// @ts-check
// What is said of a rank, in lines and in a sentence. Rule of the file: plain text.

import { ageText, isWorking, markOf, memoryText } from './marks.js';
import { cutText } from './protocol.js';

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
export function verdictText(mesh, rank, clock) {
  const since = sinceText(mesh, rank, clock);
  return markOf(mesh.verdict(rank)).word + (since && ` for ${since}`);
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
  const lines = [`rank ${rank}`, coordsText(mesh, rank), verdictText(mesh, rank, clock)];
  const queue = mesh.usage(rank).queue;
  if (queue > 0) lines.push(`${queue} waiting in its queue`);
  return [...lines, cutText(matterOf(mesh, rank), 120), ...usageTexts(mesh, rank)].filter(Boolean);
}

/** For those who hear it. @param {Mesh} mesh @param {number} rank @param {number} clock @param {boolean} selected */
export function rankSentence(mesh, rank, clock, selected) {
  const lines = rankLines(mesh, rank, clock);
  return [...lines, selected ? 'selected' : 'not selected'].join(', ');
}

/** The share of its device, or of its processors, 0 to 1; NaN is not known. @param {Mesh} mesh @param {number} rank */
export function loadOf(mesh, rank) {
  if (!isWorking(mesh.verdict(rank)) && mesh.verdict(rank) !== 'idle') return NaN;
  const gpu = mesh.columns.get('gpu')?.[rank] ?? NaN;
  const percent = isNaN(gpu) ? (mesh.columns.get('cpu')?.[rank] ?? NaN) : gpu;
  return Math.min(1, percent / 100);
}

/** The number of the notebook's cell that a text names, as in "In[5]". @param {string} text */
export function cellNumber(text) {
  const match = /\bIn ?\[(\d{1,7})\]/.exec(text);
  return match ? Number(match[1]) : null;
}
