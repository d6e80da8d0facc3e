/** Cells that a button writes. */

import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';

import { isCode } from './code.js';

/** Run a line in a new cell below the active one; above it where that is empty. Settles when it has run. */
export async function runInNewCell(panel: NotebookPanel, line: string): Promise<void> {
  const { content, sessionContext } = panel;
  const { activeCell, activeCellIndex } = content;
  const isEmpty = isCode(activeCell) && !activeCell.model.sharedModel.getSource().trim();
  const index = isEmpty ? activeCellIndex : activeCellIndex + 1;
  content.model?.sharedModel.insertCell(index, { cell_type: 'code', source: line });
  const cell = content.widgets[index];
  content.activeCellIndex = isEmpty ? index + 1 : index; // who has begun to write goes on there
  panel.activate();
  await NotebookActions.runCells(content, [cell], sessionContext);
}
