/** The commands of the extension: for menus, the palette, shortcuts, toolbars. */

import type { Cell, CodeCell } from '@jupyterlab/cells';
import type { INotebookTracker } from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyJSONObject, ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { act, allOf, confirmLoss } from './actions.js';
import type { Chooser } from './cells/chooser.js';
import { runOnMesh } from './cells/run.js';
import type { Connection, Mesh } from './front.js';
import type { Current } from './kernel/current.js';
import { chooseIcon, meshIcon, runIcon } from './ui/icons.js';

export const OPEN = 'monarch-nb:open-panel';
/** What the palette offers, in this order. */
export const OFFERED = ['open-panel', 'up', 'interrupt', 'heal', 'stop', 'show-logs', 'run-on-mesh', 'run-on-slice'].map(
  name => `monarch-nb:${name}`
);
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
    execute: (connection: Connection, mesh: Mesh) => unknown
  ) => {
    scene.commands.addCommand(`monarch-nb:${name}`, {
      label,
      describedBy: schema({ mesh: { type: 'string', description: 'Its name; else the current one.' } }),
      isEnabled: () => scene.current.meshes.length > 0,
      isVisible: () => scene.current.connection !== null,
      execute: async args => {
        const { connection } = scene.current;
        const mesh = meshOf(scene.current, args.mesh);
        await (connection && mesh && execute(connection, mesh));
      }
    });
  };
  add('interrupt', 'Interrupt the Mesh', (connection, mesh) =>
    act(connection, 'interrupt', { mesh: mesh.name, ranks: allOf(mesh) })
  );
  add('heal', 'Restart Failed Ranks', (connection, mesh) => act(connection, 'heal', { mesh: mesh.name }));
  add('stop', 'Stop the Mesh…', async (connection, mesh) => {
    const lost = `Its ${mesh.size} processes end, and the values in them are lost.`;
    const isSure = await confirmLoss(`Stop ${mesh.name}?`, lost, 'Stop');
    await (isSure && act(connection, 'down', { mesh: mesh.name }));
  });
  add('show-logs', 'Show Logs of the Mesh', (_, mesh) => {
    scene.showLogs(mesh.name, null);
  });
}

function addCellCommands(scene: Scene): void {
  const { commands, current, chooser } = scene;
  const isReady = () => current.connection !== null && cellOf(scene) !== null;
  const isVisible = () => current.connection !== null && scene.isCellButtonWanted();
  commands.addCommand('monarch-nb:run-on-mesh', {
    label: args => (args.isChoice ? sliceOf(args) || 'all ranks' : 'Run Cell on the Mesh'),
    caption: 'Run this cell on all ranks of the mesh',
    icon: args => (args.isChoice ? undefined : runIcon),
    className: 'jp-cell-code',
    describedBy: schema({ slice: SLICE }),
    isEnabled: isReady,
    isVisible: args => (args.toolbar ? isVisible() : isReady()),
    execute: async args => {
      const slice = sliceOf(args);
      chooser.chose(slice);
      await run(scene, slice);
    }
  });
  commands.addCommand('monarch-nb:run-on-slice', {
    label: args => (args.isOther ? 'other ranks…' : 'Run Cell on Ranks…'),
    describedBy: NO_ARGS,
    isEnabled: isReady,
    isVisible: isReady,
    execute: async () => {
      const slice = await chooser.ask();
      if (slice !== null) {
        chooser.chose(slice);
        await run(scene, slice);
      }
    }
  });
  commands.addCommand('monarch-nb:choose-slice', {
    label: 'Choose Ranks for This Cell',
    caption: 'Run this cell on some ranks',
    icon: chooseIcon,
    className: 'jp-cell-code',
    describedBy: NO_ARGS,
    isEnabled: isReady,
    isVisible,
    execute: () => {
      const { left, bottom } = placeOf(cellOf(scene));
      chooser.open(current.meshes, left, bottom);
    }
  });
}

function sliceOf({ slice }: ReadonlyPartialJSONObject): string {
  return typeof slice === 'string' ? slice : '';
}

async function run(scene: Scene, slice: string): Promise<void> {
  const cell = cellOf(scene);
  const { panel } = scene.current;
  if (cell && panel) {
    await runOnMesh(panel, cell, slice);
  }
}

/** The active cell, if it is one of code. */
function cellOf({ tracker }: Scene): CodeCell | null {
  const cell = tracker.activeCell;
  return isCode(cell) ? cell : null;
}

/** Told by the model: a page may have the class twice. */
function isCode(cell: Cell | null): cell is CodeCell {
  return cell?.model.type === 'code';
}

function placeOf(cell: CodeCell | null): DOMRect {
  const button = cell?.node.querySelector('[data-jp-item-name="monarch-nb-choose"]');
  return (button ?? cell?.node ?? document.body).getBoundingClientRect();
}

/** The mesh of that name; else the one that `%%mesh` means. */
function meshOf({ meshes, connection }: Current, wanted: unknown): Mesh | undefined {
  const named = (name: unknown) => meshes.find(mesh => mesh.name === name);
  return named(wanted) ?? named(connection?.model.current) ?? meshes.at(-1);
}

function schema(properties: Record<string, ReadonlyJSONObject>): { args: ReadonlyJSONObject } {
  return { args: { type: 'object', properties } };
}
