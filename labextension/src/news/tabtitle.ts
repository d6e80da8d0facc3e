/**
 * The title of the browser's tab: "3/4 ranks, failed - train.ipynb - JupyterLab" while a mesh needs a look.
 *
 * JupyterLab writes its own title anew whenever it wants to, and reads none: ours is put before what it has written.
 * That a kernel is busy its icon in the tab says already.
 */

import { isDead, type Mesh } from '../front.js';
import { type Current, followNews } from '../kernel/current.js';

/** From now on, for the notebook that the person is in. */
export function tellInTitle(current: Current): void {
  let said = '';
  let theirs = document.title;
  const write = () => {
    const wanted = said ? `${said} - ${theirs}` : theirs;
    if (document.title !== wanted) {
      document.title = wanted;
    }
  };
  const written = new MutationObserver(() => {
    if (document.title !== `${said} - ${theirs}`) {
      theirs = document.title;
      write();
    }
  });
  written.observe(document.head, { childList: true, characterData: true, subtree: true });
  followNews(current, () => {
    const isLost = current.connection?.state === 'lost';
    const now = isLost ? '' : titleOf(current.meshes);
    if (now !== said) {
      said = now;
      write();
    }
  });
}

/** What needs a look: ranks that are gone, that failed, that are silent, that wait at a breakpoint; else "". */
export function titleOf(meshes: readonly Mesh[]): string {
  const states = meshes.flatMap(mesh => mesh.states as string[]);
  const lost = states.filter(isDead).length;
  const words = ['failed', 'silent', 'paused'].filter(state => states.includes(state));
  return [...(lost ? [`${states.length - lost}/${states.length} ranks`] : []), ...words].join(', ');
}
