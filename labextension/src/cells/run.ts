/**
 * Run a cell on the mesh, or a slice of it, without `%%mesh` in its text.
 * Rule of the file: the text stays as it is. Which ranks are meant goes with the request, as
 * `metadata.monarch.mesh`, what would stand after `%%mesh`; all else is what Shift+Enter does.
 */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { CodeCell } from '@jupyterlab/cells';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';

import { showNote } from '../actions.js';
import { element } from '../front.js';
import { refusal, tidy } from './slices.js';

/** Run the cell on these ranks; "" is all of the current mesh. False if it was not sent. */
export async function runOnMesh(panel: NotebookPanel, cell: CodeCell, slice: string): Promise<boolean> {
  const no = refusal(cell.model.sharedModel.getSource());
  if (no) {
    showNote(no);
    return false;
  }
  const mesh = tidy(slice);
  const context = sendingWith(panel.sessionContext, { mesh }, () => { tagCell(cell, mesh); });
  await NotebookActions.runCells(panel.content, [cell], context);
  return true;
}

/** The session as it is, but for what goes with the requests to run code. */
function sendingWith(context: ISessionContext, monarch: { mesh: string }, sent: () => void): ISessionContext {
  const { session } = context;
  if (!session?.kernel) {
    return context;
  }
  const { kernel } = session;
  const requestExecute: Kernel.IKernelConnection['requestExecute'] = (content, disposeOnDone, metadata) => {
    sent();
    return kernel.requestExecute(content, disposeOnDone, { ...metadata, monarch });
  };
  return over(context, { session: over(session, { kernel: over(kernel, { requestExecute }) }) });
}

/** An object with some of its members replaced. */
function over<T extends object>(target: T, members: Partial<T>): T {
  return new Proxy(target, {
    get: (_, name) => {
      if (Object.hasOwn(members, name)) {
        return members[name as keyof T];
      }
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? (value.bind(target) as unknown) : value;
    }
  });
}

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
