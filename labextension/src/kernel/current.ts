/** The notebook that the user is in, and the link to its kernel. */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import type { Connection, Mesh } from '../front.js';
import type { Link, Links } from './links.js';
import { Listeners } from './listeners.js';

/** Follow a notebook's kernels; `listener` is told at once and of each change. Returns the undo. */
export function followLink(
  links: Links,
  panel: NotebookPanel,
  listener: (link: Link | null) => void
): () => void {
  const { sessionContext } = panel;
  let undo: () => void = () => undefined;
  const take = () => {
    undo();
    const kernel = panel.isDisposed ? null : sessionContext.session?.kernel;
    const link = kernel ? links.of(kernel) : null;
    undo = link?.changed.add(() => { listener(link); }) ?? (() => undefined);
    listener(link);
  };
  sessionContext.kernelChanged.connect(take);
  take();
  return () => {
    undo();
    sessionContext.kernelChanged.disconnect(take);
  };
}

/** Tell of each change of what is known of the current notebook's meshes, and at once. */
export function followNews(current: Current, tell: () => void): void {
  let followed: Connection | null = null;
  let undo: (() => void)[] = [];
  const take = () => {
    const { connection } = current;
    if (connection !== followed) {
      for (const one of undo) {
        one();
      }
      followed = connection;
      undo = connection ? [connection.model.onChange(tell), connection.onState(tell)] : [];
    }
    tell();
  };
  current.changed.add(take);
  take();
}

export class Current {
  panel: NotebookPanel | null = null;
  link: Link | null = null;
  readonly changed = new Listeners();
  #undo: () => void = () => undefined;

  constructor(
    tracker: INotebookTracker,
    private readonly links: Links
  ) {
    tracker.currentChanged.connect((_, panel) => { this.#take(panel); });
    this.#take(tracker.currentWidget);
  }

  get connection(): Connection | null {
    return this.link?.connection ?? null;
  }

  /** The meshes that are up. */
  get meshes(): Mesh[] {
    const all = [...(this.connection?.model.meshes.values() ?? [])];
    return all.filter(mesh => mesh.ended === null);
  }

  #take(panel: NotebookPanel | null): void {
    this.#undo();
    this.panel = panel;
    this.link = null;
    this.#undo = panel ? followLink(this.links, panel, link => { this.#tell(link); }) : () => undefined;
    if (!panel) {
      this.changed.tell();
    }
  }

  #tell(link: Link | null): void {
    this.link = link;
    this.changed.tell();
  }
}
