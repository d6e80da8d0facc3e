/**
 * The ranks that a cell is meant for, without `%%mesh` in its text.
 * Rule of the file: they are kept in the cell's metadata as `monarch.mesh`, what would stand after `%%mesh`.
 * JupyterLab sends a cell's metadata with each request to run it, so every way to run the cell follows.
 */

import type { CodeCell, ICellModel } from '@jupyterlab/cells';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';

import { showNote } from '../actions.js';
import { refusal, tidy } from './slices.js';

const KEY = 'monarch';

/** As the kernel reads it: "" is all ranks of the current mesh, null the controller. */
export function choiceOf(model: ICellModel): string | null {
  const { mesh } = (model.getMetadata(KEY) ?? {}) as { mesh?: unknown };
  return typeof mesh === 'string' ? mesh : null;
}

/** Keep it, from the next run on. */
export function choose(model: ICellModel, slice: string | null): void {
  if (slice === null) {
    model.deleteMetadata(KEY);
  } else {
    model.setMetadata(KEY, { mesh: tidy(slice) });
  }
}

/** Choose these ranks for the cell, and run it. */
export async function runOn({ content, sessionContext }: NotebookPanel, cell: CodeCell, slice: string): Promise<void> {
  const no = refusal(cell.model.sharedModel.getSource());
  if (no) {
    showNote(no);
    return;
  }
  choose(cell.model, slice);
  await NotebookActions.runCells(content, [cell], sessionContext);
}
