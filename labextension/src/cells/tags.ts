/** The tag of each cell that is meant for ranks: where it runs, and a menu to choose anew. */

import type { Cell, ICellModel } from '@jupyterlab/cells';
import type { INotebookTracker, Notebook, NotebookPanel } from '@jupyterlab/notebook';

import { button } from '../front.js';
import { followLink } from '../kernel/current.js';
import type { Links } from '../kernel/links.js';
import { choiceOf } from './choice.js';
import { ownMagic } from './slices.js';

/** From now on, in all notebooks. `choose` opens the menu for the active cell, below its tag. */
export function tagCells(tracker: INotebookTracker, links: Links, choose: (tag: HTMLElement) => void): void {
  const follow = (panel: NotebookPanel) => {
    followCells(panel.content, choose);
    const undo = followLink(links, panel, link => {
      panel.node.classList.toggle('mnb-lab-plain', link?.phase === 'plain'); // it knows of no ranks
    });
    panel.disposed.connect(undo);
  };
  tracker.forEach(follow);
  tracker.widgetAdded.connect((_, panel) => { follow(panel); });
}

function followCells(notebook: Notebook, choose: (tag: HTMLElement) => void): void {
  const tags = new WeakMap<Cell, HTMLElement>();

  const draw = (cell: Cell) => {
    const said = saidOf(cell.model);
    const known = tags.get(cell);
    if (known?.textContent === said) {
      return;
    }
    known?.remove();
    tags.delete(cell);
    if (said) {
      const tag = button(said, 'Choose where this cell runs', () => {
        notebook.activeCellIndex = notebook.widgets.indexOf(cell);
        choose(tag);
      });
      tag.classList.add('mnb-lab-tag', 'mnb-palette');
      tags.set(cell, tag);
      void cell.ready.then(() => {
        if (tags.get(cell) === tag) {
          cell.node.querySelector('.jp-Cell-header')?.append(tag);
        }
      });
    }
  };
  const drawModel = (model: ICellModel) => {
    const cell = notebook.widgets.find(one => one.model === model);
    if (cell) {
      draw(cell);
    }
  };
  const take = () => {
    for (const cell of notebook.widgets) {
      cell.model.contentChanged.connect(drawModel); // once: signals know their slots
      draw(cell);
    }
  };
  notebook.model?.cells.changed.connect(take);
  take();
}

/** "" where the cell runs in the controller, or its text says where. */
function saidOf(model: ICellModel): string {
  const slice = model.type === 'code' ? choiceOf(model) : null;
  return slice === null || ownMagic(model.sharedModel.getSource()) ? '' : `runs on ${slice || 'the mesh'}`;
}
