/** To the cell that runs, or that a rank's text names: into sight, and lit for a moment. */

import type { Cell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';

import { showError, showNote } from '../actions.js';
import type { Connection } from '../front.js';

const LIT = 'mnb-mod-lit';
const LIT_MS = 1_600;

/** To the cell with this number. The kernel knows its id; else its prompt shows the number. */
export async function jumpToNumber(
  panel: NotebookPanel,
  connection: Connection,
  number: number
): Promise<void> {
  try {
    const { id } = (await connection.ask('cell', { number })) as { id: string | null };
    const found = findCell(panel, id) ?? findNumber(panel, number);
    if (found) {
      await showCell(panel, found);
    } else {
      showNote(`Cell In [${number}] is not in this notebook any more.`);
    }
  } catch (error) {
    showError(error);
  }
}

function findCell(panel: NotebookPanel, id: string | null): Cell | undefined {
  return panel.content.widgets.find(cell => cell.model.sharedModel.getId() === id);
}

function findNumber(panel: NotebookPanel, number: number): Cell | undefined {
  return panel.content.widgets.find(
    ({ model }) => (model.sharedModel as { execution_count?: number }).execution_count === number
  );
}

export async function showCell(panel: NotebookPanel, cell: Cell): Promise<void> {
  const notebook = panel.content;
  notebook.activeCellIndex = notebook.widgets.indexOf(cell);
  await notebook.scrollToCell(cell, 'center');
  cell.node.classList.add(LIT);
  setTimeout(() => {
    cell.node.classList.remove(LIT);
  }, LIT_MS);
}
