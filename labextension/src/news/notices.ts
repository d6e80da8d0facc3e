/**
 * A person is told when a cell has ended that ran for long, or that `%mesh watch` was typed for.
 *
 * The kernel tells which cell runs, also one that an earlier page has begun. Rule of the file: the browser is asked
 * for its permission once, and only by a button: some refuse for good what nobody has pressed a key for.
 */

import type { Cell } from '@jupyterlab/cells';
import { Notification as LabNotification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import { isCode } from '../cells/code.js';
import { showCell } from '../cells/jump.js';
import { followLink } from '../kernel/current.js';
import type { Link, Links } from '../kernel/links.js';
import { timeText } from '../ui/times.js';
import { type Ended, endedOf, isTold, type RunningCell, tellerOf, wordsOf } from './ended.js';

export interface NoticeChoice {
  notify: boolean;
  /** Seconds. */
  notifyAfter: number;
}

const ASKED = 'monarch-nb:asked-to-notify';

/** What this page knows of a kernel's cells. */
interface Seen {
  cell: RunningCell | null;
  asking?: ReturnType<typeof setTimeout>;
}

export class Notices {
  readonly #followed = new WeakSet<object>();

  constructor(
    private readonly tracker: INotebookTracker,
    links: Links,
    private readonly activate: (id: string) => void,
    private readonly choice: () => NoticeChoice
  ) {
    const follow = (panel: NotebookPanel) => {
      const undo = followLink(links, panel, link => { this.#follow(link); });
      panel.disposed.connect(undo);
    };
    tracker.forEach(follow);
    tracker.widgetAdded.connect((_, panel) => { follow(panel); });
  }

  #follow(link: Link | null): void {
    const { connection } = link ?? {};
    if (!link || !connection || this.#followed.has(connection)) {
      return;
    }
    this.#followed.add(connection);
    const seen: Seen = { cell: null };
    const { model } = connection;
    connection.onState(() => {
      if (seen.cell && ['dead', 'autorestarting'].includes(link.kernel.status)) {
        this.#hasEnded(link, seen.cell, model.clock - seen.cell.since, { name: '', value: connection.why });
        seen.cell = null;
      }
    });
    model.onChange(() => {
      const ended = endedOf(seen.cell, model.cell);
      const isNew = ended !== null || seen.cell?.watched !== model.cell?.watched;
      seen.cell = model.cell;
      if (ended) {
        this.#hasEnded(link, ended, model.clock - ended.since);
      }
      if (isNew) {
        this.#askLater(seen, model.clock);
      }
    });
  }

  /** `error`: else what its output says. */
  #hasEnded(link: Link, cell: RunningCell, took_ms: number, error?: Ended['error']): void {
    const found = isTold(cell, took_ms, this.choice()) ? this.#find(link, cell.id) : null;
    if (found) {
      const [panel, node] = found;
      const notebook = PathExt.basename(panel.context.path);
      const { number } = cell;
      this.#tell(panel, node, { notebook, number, took_ms, error: error ?? errorOf(node) });
    }
  }

  #find({ kernel }: Link, id: string | null): [NotebookPanel, Cell] | null {
    let found: [NotebookPanel, Cell] | null = null;
    this.tracker.forEach(panel => {
      const cell = panel.content.widgets.find(({ model }) => model.sharedModel.getId() === id);
      if (cell && panel.sessionContext.session?.kernel?.id === kernel.id) {
        found = [panel, cell];
      }
    });
    return found;
  }

  #tell(panel: NotebookPanel, cell: Cell, ended: Ended): void {
    const isInFront = document.visibilityState === 'visible' && document.hasFocus();
    const teller = tellerOf(isInFront, isInSight(panel, cell), permission());
    const [title, body] = wordsOf(ended);
    const show = () => {
      window.focus();
      this.activate(panel.id);
      void showCell(panel, cell);
    };
    if (teller && !(teller === 'browser' && notifyByBrowser(title, body, show))) {
      const text = body ? `${title}: ${body}` : title;
      LabNotification.emit(text, ended.error ? 'error' : 'success', {
        autoClose: false, // the person may have left with the page in front
        actions: [{ label: 'Show the cell', callback: show }]
      });
    }
  }

  /** While a cell runs of whose end the person will be told. */
  #askLater(seen: Seen, clock: number): void {
    clearTimeout(seen.asking);
    const { cell } = seen;
    if (cell && permission() === 'default') {
      const { notifyAfter } = this.choice();
      const left = cell.watched ? 0 : notifyAfter * 1000 - (clock - cell.since);
      seen.asking = setTimeout(() => { this.#ask(cell); }, Math.max(left, 0));
    }
  }

  #ask({ watched }: RunningCell): void {
    const { notify, notifyAfter } = this.choice();
    const isFirst = localStorage.getItem(ASKED) === null;
    if (permission() !== 'default' || !(watched === true || (notify && isFirst))) {
      return;
    }
    localStorage.setItem(ASKED, 'yes');
    const which = watched ? 'this cell ends' : `cells end that run for more than ${timeText(notifyAfter)}`;
    LabNotification.emit(`Shall the browser tell you when ${which}, also while you are elsewhere?`, 'info', {
      autoClose: false,
      actions: [
        { label: 'Not now', callback: () => undefined },
        {
          label: 'Tell me',
          displayType: 'accent',
          callback: () => {
            void window.Notification.requestPermission();
          }
        }
      ]
    });
  }
}

/** What the browser says; "denied" where it has no notifications, as for a page that came over plain http. */
function permission(): string {
  return 'Notification' in window ? window.Notification.permission : 'denied';
}

/** False where it cannot: phones have it for service workers only. Pages that show one notebook replace each other's. */
function notifyByBrowser(title: string, body: string, onClick: () => void): boolean {
  try {
    const notification = new window.Notification(title, { body, tag: title });
    notification.onclick = () => {
      notification.close();
      onClick();
    };
    return true;
  } catch {
    return false;
  }
}

/** Whether a part of the cell can be seen in its notebook. */
function isInSight(panel: NotebookPanel, cell: Cell): boolean {
  if (!panel.isVisible || !cell.node.isConnected) {
    return false;
  }
  const [of, around] = [cell.node.getBoundingClientRect(), panel.content.node.getBoundingClientRect()];
  return of.height > 0 && of.top < around.bottom && of.bottom > around.top;
}

function errorOf(cell: Cell): Ended['error'] {
  const outputs = isCode(cell) ? cell.model.outputs.toJSON() : [];
  const error = outputs.findLast(({ output_type }) => output_type === 'error');
  return error ? { name: error.ename as string, value: error.evalue as string } : null;
}
