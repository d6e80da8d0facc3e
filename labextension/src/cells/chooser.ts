/** The menu that asks for which ranks a cell is meant. Where it hangs on the cell's tag, choosing runs nothing. */

import { InputDialog } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import { Menu } from '@lumino/widgets';

import { showNote } from '../actions.js';
import type { Mesh } from '../front.js';
import { choicesOf, problemOf, remember, tidy } from './slices.js';

const RUN = 'monarch-nb:run-on-mesh';
const ASK = 'monarch-nb:run-on-slice';
const FREE = 'monarch-nb:run-in-controller';

const KEPT = 'monarch-nb:slices';

export class Chooser {
  #recent = recentSlices();

  constructor(private readonly commands: CommandRegistry) {}

  /** Open the menu below an element. */
  open(meshes: readonly Mesh[], below: Element, isTag: boolean): void {
    const menu = new Menu({ commands: this.commands });
    menu.title.label = 'Ranks';
    for (const [index, slices] of this.#groups(meshes).entries()) {
      if (index > 0 && slices.length) {
        menu.addItem({ type: 'separator' });
      }
      for (const slice of slices) {
        menu.addItem({ command: RUN, args: { slice, isChoice: true, isTag } });
      }
    }
    menu.addItem({ type: 'separator' });
    menu.addItem({ command: ASK, args: { isOther: true, isTag } });
    if (this.commands.isVisible(FREE)) {
      menu.addItem({ command: FREE });
    }
    menu.aboutToClose.connect(() => {
      requestAnimationFrame(() => { menu.dispose(); });
    });
    const { left, bottom } = below.getBoundingClientRect();
    menu.open(left, bottom);
  }

  /** The user's words; null if there are none. */
  async ask(): Promise<string | null> {
    const { value } = await InputDialog.getText({
      title: 'Run the cell on these ranks, also next time',
      label: 'As after %%mesh: 0-3, or gpus=0:4, or @mesh1 hosts=0',
      text: this.#recent[0] ?? '',
      okLabel: 'OK'
    });
    const problem = value === null ? '' : problemOf(value);
    if (problem) {
      showNote(problem);
    }
    return value === null || problem ? null : tidy(value);
  }

  /** What was chosen is offered first next time. */
  chose(slice: string): void {
    this.#recent = remember(this.#recent, slice);
    keepSlices(this.#recent);
  }

  #groups(meshes: readonly Mesh[]): string[][] {
    const several = meshes.length > 1;
    const axes = meshes.map(mesh => {
      const choices = choicesOf(mesh.labels, mesh.sizes);
      return several ? [`@${mesh.name}`, ...choices.map(one => `@${mesh.name} ${one}`)] : choices;
    });
    const offered = new Set(axes.flat());
    return [[''], ...axes, this.#recent.filter(slice => !offered.has(slice))];
  }
}

/** Those of earlier pages too. */
function recentSlices(): string[] {
  try {
    return (localStorage.getItem(KEPT) ?? '').split('\n').filter(slice => slice && !problemOf(slice));
  } catch {
    return []; // some browsers are told to keep nothing
  }
}

function keepSlices(slices: readonly string[]): void {
  try {
    localStorage.setItem(KEPT, slices.join('\n'));
  } catch {
    // then they are not kept
  }
}
