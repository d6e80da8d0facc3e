/** The commands of the extension: for menus, the palette, shortcuts, toolbars. */

import type { CodeCell } from '@jupyterlab/cells';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject, ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { act, allOf, confirmLoss } from './actions.js';
import type { Chooser } from './cells/chooser.js';
import { choiceOf, choose, runOn } from './cells/choice.js';
import { isCode } from './cells/code.js';
import { type Connection, isDead, type Mesh } from './front.js';
import type { Current } from './kernel/current.js';
import type { Kind } from './mainarea/meshtab.js';
import { chooseIcon, meshIcon, runIcon } from './ui/icons.js';

export const OPEN = 'monarch-nb:open-panel';
/** What the palette offers, in this order. */
export const OFFERED = [
  ...['open-panel', 'up', 'interrupt', 'heal', 'stop', 'show-logs', 'show-stacks', 'open-tab', 'open-curves'],
  ...['run-on-mesh', 'run-on-slice']
].map(name => `monarch-nb:${name}`);
export const COMMANDS = [...OFFERED, 'monarch-nb:choose-slice'];

/** What commands act on. */
export interface Scene {
  commands: CommandRegistry;
  tracker: INotebookTracker;
  current: Current;
  chooser: Chooser;
  isCellButtonWanted: () => boolean;
  togglePanel: () => void;
  askForMesh: () => void;
  showLogs: (mesh: string, ranks: string | null) => void;
  showStacks: (mesh: string, ranks: string) => void;
  openTab: (mesh: string, kind: Kind) => void;
}

const NO_ARGS = schema({});
const SLICE = { type: 'string', description: 'What stands after %%mesh; empty: all ranks.' };

export function addCommands(scene: Scene): void {
  addPanelCommands(scene);
  addMeshCommands(scene);
  addCellCommands(scene);
}

function addPanelCommands({ commands, current, togglePanel, askForMesh }: Scene): void {
  commands.addCommand(OPEN, {
    label: 'Show the Mesh',
    caption: "Show or hide the mesh of this notebook's kernel",
    icon: meshIcon,
    describedBy: NO_ARGS,
    execute: togglePanel
  });
  commands.addCommand('monarch-nb:up', {
    label: 'Bring up a Mesh…',
    describedBy: NO_ARGS,
    isEnabled: () => current.connection !== null,
    isVisible: () => current.connection !== null,
    execute: askForMesh
  });
}

function addMeshCommands(scene: Scene): void {
  const add = (
    name: string,
    label: string,
    execute: (connection: Connection, mesh: Mesh) => unknown,
    isOf: (mesh: Mesh) => boolean = () => true
  ) => {
    scene.commands.addCommand(`monarch-nb:${name}`, {
      label,
      describedBy: schema({ mesh: { type: 'string', description: 'Its name; else the current one.' } }),
      isEnabled: () => scene.current.meshes.some(isOf),
      isVisible: () => scene.current.connection !== null,
      execute: async args => {
        const { connection } = scene.current;
        const mesh = meshOf(scene.current, args.mesh, isOf);
        await (connection && mesh && execute(connection, mesh));
      }
    });
  };
  add('interrupt', 'Interrupt the Mesh', (connection, mesh) =>
    act(connection, 'interrupt', { mesh: mesh.name, ranks: allOf(mesh) })
  );
  add(
    'heal',
    'Heal the Mesh: Restart Exited Ranks',
    (connection, mesh) => act(connection, 'heal', { mesh: mesh.name }),
    mesh => Object.keys(mesh.counts()).some(isDead)
  );
  add('stop', 'Stop the Mesh…', async (connection, mesh) => {
    const lost = `Its ${mesh.size} processes end, and the values in them are lost.`;
    const isSure = await confirmLoss(`Stop ${mesh.name}?`, lost, 'Stop');
    await (isSure && act(connection, 'down', { mesh: mesh.name }));
  });
  add('show-logs', 'Show Logs of the Mesh', (_, mesh) => {
    scene.showLogs(mesh.name, null);
  });
  add('show-stacks', 'Show Stacks of the Mesh', (_, mesh) => {
    scene.showStacks(mesh.name, allOf(mesh));
  });
  add('open-tab', 'Open the Mesh as a Tab', (_, mesh) => {
    scene.openTab(mesh.name, 'view');
  });
  add('open-curves', 'Open the Curves of the Mesh as a Tab', (_, mesh) => {
    scene.openTab(mesh.name, 'curves');
  });
}

function addCellCommands(scene: Scene): void {
  const { commands, current, chooser } = scene;
  const isReady = () => current.connection !== null && cellOf(scene) !== null;
  const isVisible = () => current.connection !== null && scene.isCellButtonWanted();
  const chosen = () => {
    const cell = cellOf(scene);
    return cell && choiceOf(cell.model);
  };
  commands.addCommand('monarch-nb:run-on-mesh', {
    label: args => (args.isChoice ? (sliceOf(args) || 'all ranks') : 'Run Cell on the Mesh'),
    caption: 'Run this cell on the mesh, from now on',
    icon: args => (args.isChoice ? undefined : runIcon),
    className: 'jp-cell-code',
    describedBy: schema({ slice: SLICE }),
    isEnabled: isReady,
    isVisible: args => (args.toolbar ? isVisible() : isReady()),
    execute: async args => {
      await take(scene, args.slice === undefined ? (chosen() ?? '') : sliceOf(args), args.isTag);
    }
  });
  commands.addCommand('monarch-nb:run-on-slice', {
    label: args => (args.isOther ? 'other ranks…' : 'Run Cell on Ranks…'),
    describedBy: NO_ARGS,
    isEnabled: isReady,
    isVisible: isReady,
    execute: async args => {
      const slice = await chooser.ask();
      if (slice !== null) {
        await take(scene, slice, args.isTag);
      }
    }
  });
  commands.addCommand('monarch-nb:run-in-controller', {
    label: 'in the controller again',
    describedBy: NO_ARGS,
    isVisible: () => chosen() !== null,
    execute: () => {
      const cell = cellOf(scene);
      if (cell) {
        choose(cell.model, null);
      }
    }
  });
  commands.addCommand('monarch-nb:choose-slice', {
    label: 'Choose Ranks for This Cell',
    caption: 'Run this cell on some ranks, from now on',
    icon: chooseIcon,
    className: 'jp-cell-code',
    describedBy: NO_ARGS,
    isEnabled: isReady,
    isVisible,
    execute: () => {
      const cell = cellOf(scene)?.node;
      const button = cell?.querySelector('[data-jp-item-name="monarch-nb-choose"]');
      chooser.open(current.meshes, button ?? cell ?? document.body, false);
    }
  });
}

function sliceOf({ slice }: ReadonlyPartialJSONObject): string {
  return typeof slice === 'string' ? slice : '';
}

/** Keep what was chosen for the active cell, and run it; from its tag it is chosen only. */
async function take({ tracker, current, chooser }: Scene, slice: string, isTag: unknown): Promise<void> {
  const cell = cellOf({ tracker });
  chooser.chose(slice);
  if (cell && isTag) {
    choose(cell.model, slice);
  } else if (cell && current.panel) {
    await runOn(current.panel, cell, slice);
  }
}

/** The active cell, if it is one of code. */
function cellOf({ tracker }: Pick<Scene, 'tracker'>): CodeCell | null {
  const cell = tracker.activeCell;
  return isCode(cell) ? cell : null;
}

/** The mesh of that name; else, of those that fit, the one that `%%mesh` means. */
function meshOf(
  { meshes, connection }: Current,
  wanted: unknown,
  fits: (mesh: Mesh) => boolean
): Mesh | undefined {
  const fitting = meshes.filter(fits);
  const current = fitting.find(({ name }) => name === connection?.model.current);
  return meshes.find(({ name }) => name === wanted) ?? current ?? fitting.at(-1);
}

function schema(properties: Record<string, ReadonlyJSONObject>): { args: ReadonlyJSONObject } {
  return { args: { type: 'object', properties } };
}
