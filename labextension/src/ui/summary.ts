/** Several meshes in a word or a line. */

import { countsText, type Mesh } from '../front.js';

/** The worst first. */
const CONCERNS = ['exited', 'unreachable', 'failed', 'silent', 'paused', 'starting', 'collective', 'busy'];

/** Of all meshes together. */
export function summaryOf(meshes: readonly Mesh[]): string {
  if (meshes.length === 0) {
    return 'no mesh';
  }
  if (meshes.length === 1) {
    return meshes[0].summary();
  }
  const counts: Record<string, number> = {};
  for (const mesh of meshes) {
    for (const [state, count] of Object.entries(mesh.counts())) {
      counts[state] = (counts[state] ?? 0) + count;
    }
  }
  const ranks = meshes.reduce((sum, mesh) => sum + mesh.size, 0);
  return `${ranks} ranks in ${meshes.length} meshes: ${countsText(counts)}`;
}

/** The state that most needs a look; "idle" if none does, "" without ranks. */
export function worstOf(meshes: readonly Mesh[]): string {
  const all = new Set(meshes.flatMap(mesh => Object.keys(mesh.counts())));
  return CONCERNS.find(state => all.has(state)) ?? (all.size ? 'idle' : '');
}
