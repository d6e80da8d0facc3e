/**
 * Boxes of questions that were taken back.
 *
 * A debugger's prompt goes when its rank has gone on, has died or was stopped. JupyterLab leaves its box open
 * below the cell, and what is typed there is lost. Here it goes when the next question comes, and with the cell's end.
 */

import { CodeCell } from '@jupyterlab/cells';
import { NotebookActions } from '@jupyterlab/notebook';
import type { IStdin } from '@jupyterlab/outputarea';

const FOLLOWED = new WeakSet<CodeCell>();

/** From now on, in the cells of all notebooks. */
export function closeOldQuestions(): void {
  NotebookActions.executionScheduled.connect((_, { cell }) => {
    if (cell instanceof CodeCell && !FOLLOWED.has(cell)) {
      FOLLOWED.add(cell);
      follow(cell);
    }
  });
}

function follow(cell: CodeCell): void {
  let open: IStdin | null = null;
  const close = () => {
    if (open) {
      remove(open);
      open = null;
    }
  };
  cell.outputArea.inputRequested.connect((_, stdin) => {
    close();
    open = stdin;
    void stdin.value.then(() => {
      open = open === stdin ? null : open; // JupyterLab removes what was answered
    });
  });
  cell.model.stateChanged.connect((_: unknown, { name, newValue }: { name: string; newValue: unknown }) => {
    if (name === 'executionState' && newValue !== 'running') {
      close();
    }
  });
}

/** The notebook gives the focus to the cell when a box goes; whoever had it keeps it. */
function remove(stdin: IStdin): void {
  const focused = document.activeElement;
  stdin.parent?.dispose();
  if (focused instanceof HTMLElement && focused.isConnected) {
    focused.focus();
  }
}
