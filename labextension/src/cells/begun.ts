/**
 * Cells that ran before this page came: what adopts their outputs is loaded behind the page.
 */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import type { Connection } from '../front.js';
import { followLink } from '../kernel/current.js';
import type { Links } from '../kernel/links.js';
import type { Adopter } from './adopting.js';

/** From now on, in all notebooks. */
export function adoptBegunCells(tracker: INotebookTracker, links: Links): void {
  const adopters = new WeakMap<Connection, Promise<Adopter>>();
  const follow = (panel: NotebookPanel) => {
    const undo = followLink(links, panel, link => {
      const { connection } = link ?? {};
      if (!link || !connection) {
        return;
      }
      const found = adopters.get(connection) ?? import(/* webpackChunkName: 'later-adopting' */ './adopting.js').then(
        ({ Adopter }) => new Adopter(tracker, link.kernel, connection)
      );
      adopters.set(connection, found);
      void found.then(adopter => { adopter.look(); });
    });
    panel.disposed.connect(undo);
  };
  tracker.forEach(follow);
  tracker.widgetAdded.connect((_, panel) => { follow(panel); });
}
