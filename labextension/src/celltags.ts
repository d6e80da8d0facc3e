/** The small tag of a cell whose outputs came from the mesh: until it runs again, or they are cleared. */

import type { CodeCell } from '@jupyterlab/cells';

import { element } from './front.js';

const TAGS = new WeakMap<CodeCell, () => void>();

/** Show the tag. A cell that has one gets another. */
export function tagCell(cell: CodeCell, slice: string): void {
  TAGS.get(cell)?.();
  const tag = element('div', 'lab-tag mnb-palette', ['mesh', slice].filter(Boolean).join(' '));
  tag.title = `This cell ran on ${slice ? `the ranks ${slice}` : 'all ranks of the mesh'}`;
  // beside the outputs: their first says on which ranks, and has no prompt there
  cell.outputArea.node.classList.add('mnb-lab-tagged');
  cell.outputArea.node.append(tag);
  const { outputs } = cell.model;
  const onOutputs = () => {
    if (outputs.length === 0 && cell.model.executionState !== 'running') {
      remove();
    }
  };
  const onState = (_: unknown, { name, newValue }: { name: string; newValue: unknown }) => {
    if (name === 'executionState' && newValue === 'running') {
      remove();
    }
  };
  const remove = () => {
    TAGS.delete(cell);
    tag.remove();
    outputs.changed.disconnect(onOutputs);
    cell.model.stateChanged.disconnect(onState);
  };
  outputs.changed.connect(onOutputs);
  cell.model.stateChanged.connect(onState);
  cell.disposed.connect(() => { TAGS.delete(cell); });
  TAGS.set(cell, remove);
}
