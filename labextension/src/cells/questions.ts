/**
 * Boxes of questions that were taken back.
 *
 * A debugger's prompt goes when its rank has gone on, has died or was stopped. JupyterLab leaves its box open
 * below the cell, and what is typed there is lost. Here it goes when the next question comes, and with the cell's end.
 */

import type { Cell } from '@jupyterlab/cells';
import { type INotebookTracker, type Notebook, NotebookActions } from '@jupyterlab/notebook';
import type { OutputArea } from '@jupyterlab/outputarea';

const OPEN = '.jp-OutputArea-stdin-item:not([class*=hiding])';

interface Execution {
  cell: Cell & { outputArea?: OutputArea };
  notebook: Notebook;
}

/** From now on, in the cells of all notebooks. */
export function closeOldQuestions(tracker: INotebookTracker): void {
  NotebookActions.executionScheduled.connect((_, { cell }: Execution) => {
    cell.outputArea?.inputRequested.connect(close); // once: signals know their slots
  });
  NotebookActions.executed.connect((_, { cell, notebook }: Execution) => {
    close(cell.outputArea);
    const kernel = tracker.find(({ content }) => content === notebook)?.sessionContext.session?.kernel;
    if (kernel) {
      kernel.hasPendingInput = false; // or JupyterLab runs no cell before the lost question is answered
    }
  });
}

/** A new question is not in the area yet; JupyterLab removes those that were answered. */
function close(area?: OutputArea): void {
  for (const item of [...(area?.widgets ?? [])]) {
    if (item.node.matches(OPEN)) {
      item.dispose();
    }
  }
}
