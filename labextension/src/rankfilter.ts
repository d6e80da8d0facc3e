/** Which ranks a search text means: "busy", "rank 3", "0-7", "failed", an endpoint's name. No DOM. */

import { isDead, markOf, type Mesh, runs } from './front.js';

/** What a filter looks at. */
export type Ranks = Pick<Mesh, 'size' | 'verdict' | 'what' | 'detail' | 'labels' | 'coords'>;

/** The ranks, in order, of which every word of the text is true; all verdicts if `verdict` is "". */
export function filterRanks(mesh: Ranks, text: string, verdict = ''): number[] {
  const tests = wordsOf(text).map(word => testOf(mesh, word));
  const found: number[] = [];
  for (let rank = 0; rank < mesh.size; rank++) {
    if ((!verdict || mesh.verdict(rank) === verdict) && tests.every(test => test(rank))) {
      found.push(rank);
    }
  }
  return found;
}

function wordsOf(text: string): string[] {
  return text
    .toLowerCase()
    .replace(/\branks?\s+(?=\d)/g, '')
    .replace(/,\s+(?=\d)/g, ',')
    .split(/\s+/)
    .filter(Boolean);
}

function testOf(mesh: Ranks, word: string): (rank: number) => boolean {
  if (/^\d+(-\d+)?(,\d+(-\d+)?)*,?$/.test(word)) {
    const wanted = new Set(runs(word));
    return rank => wanted.has(rank);
  }
  const [, label, value] = /^(\w+)=(\d+)$/.exec(word) ?? [];
  const axis = mesh.labels.findIndex(one => one.toLowerCase() === label);
  if (label && axis >= 0) {
    return rank => mesh.coords(rank)[axis] === Number(value);
  }
  return rank => textOf(mesh, rank).includes(word);
}

/** All that can be searched of a rank. */
function textOf(mesh: Ranks, rank: number): string {
  const verdict = mesh.verdict(rank);
  const lost = isDead(verdict) ? 'failed' : '';
  const all = [verdict, markOf(verdict).word, lost, mesh.what(rank), mesh.detail(rank)];
  return all.join(' ').toLowerCase();
}
