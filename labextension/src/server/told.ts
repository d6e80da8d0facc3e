/** What the list of all meshes says. Decisions only. */

import { markOf, type Mesh } from '../front.js';
import type { Link } from '../kernel/links.js';
import { worstOf } from '../ui/summary.js';
import type { MeshKernel } from './kernels.js';

/** What a row says: of a mesh, or of a kernel with `mesh` "". */
export interface Told {
  kernel: MeshKernel;
  mesh: string;
  /** "8 ranks, failed"; "busy"; "no mesh" */
  said: string;
  /** The state that most needs a look; "": none. */
  state: string;
}

/**
 * A row for each mesh of a kernel; one for the kernel where it has told of none. What was told `before` stays while a
 * kernel is only asked anew: its notebook was closed, or opened.
 */
export function toldOf(
  kernel: MeshKernel,
  link: Pick<Link, 'connection' | 'phase'> | null,
  before: readonly Told[] = []
): Told[] {
  const { connection } = link ?? {};
  const meshes = [...(connection?.model.meshes.values() ?? [])].filter(({ ended }) => ended === null);
  if (meshes.length) {
    return meshes.map(mesh => ({ kernel, mesh: mesh.name, said: saidOf(mesh), state: worstOf([mesh]) }));
  }
  const hasTold = connection && connection.model.n >= 0;
  const isLost = connection?.state === 'lost';
  if (!hasTold && !isLost && link?.phase !== 'gone' && before.some(({ mesh }) => mesh)) {
    return before.map(one => ({ ...one, kernel }));
  }
  const silent = isLost ? 'no answer' : 'asking…';
  return [{ kernel, mesh: '', said: hasTold ? 'no mesh' : kernel.isBusy ? 'busy' : silent, state: '' }];
}

/** "8 ranks, failed" */
function saidOf(mesh: Mesh): string {
  return `${mesh.size === 1 ? '1 rank' : `${mesh.size} ranks`}, ${markOf(worstOf([mesh])).word}`;
}
