/** The tabs of meshes and curves: opened, found again when the page is loaded again, closed when their kernel ends. */

import type { ILayoutRestorer, JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';

import { showNote } from '../actions.js';
import type { ServerKernels } from '../server/kernels.js';
import { meshIcon } from '../ui/icons.js';
import type { Kind, MeshTab, TabPage } from './meshtab.js';

const RESTORE = 'monarch-nb:restore-tab';

export class MeshTabs {
  readonly #tracker = new WidgetTracker<MainAreaWidget<MeshTab>>({ namespace: 'monarch-nb-meshes' });

  constructor(
    private readonly shell: JupyterFrontEnd.IShell,
    private readonly kernels: ServerKernels,
    private readonly page: Pick<TabPage, 'jump' | 'showLogs'>
  ) {}

  /** Have what was open open again, where its kernel still runs. */
  restoreWith(restorer: ILayoutRestorer, commands: CommandRegistry): void {
    commands.addCommand(RESTORE, {
      describedBy: { args: null },
      execute: async args => {
        await this.kernels.ready;
        await this.open(...wishOf(args));
      }
    });
    void restorer.restore(this.#tracker, {
      command: RESTORE,
      args: ({ content }) => ({ kernel: content.kernelId, mesh: content.mesh, kind: content.kind }),
      name: ({ id }) => id
    });
  }

  /** Nothing where the kernel is gone. */
  async open(kernel: string, mesh: string, kind: Kind): Promise<void> {
    const id = `monarch-nb-${kind}-${mesh.replace(/\W+/g, '-')}-${kernel}`;
    const { MeshTab } = await import(/* webpackChunkName: 'later-views' */ './meshtab.js');
    const found = this.kernels.all.find(one => one.id === kernel);
    if (found && !this.#tracker.find(tab => tab.id === id)) {
      const hasEnded = () => {
        tab.dispose();
        showNote(`The tab of ${mesh} was closed: the kernel of ${found.name} has ended.`);
      };
      const content = new MeshTab(this.kernels.borrow(found), mesh, kind, { ...this.page, hasEnded });
      const tab = new MainAreaWidget({ content });
      tab.id = id;
      tab.title.label = kind === 'curves' ? `Curves of ${mesh}` : mesh;
      tab.title.caption = `${tab.title.label}, ${found.path}`;
      tab.title.icon = meshIcon;
      tab.title.closable = true;
      tab.toolbar.hide();
      this.shell.add(tab, 'main', { type: 'Mesh', ...this.#place() });
      if (!tab.isAttached) {
        this.shell.add(tab, 'right', { type: 'Mesh' }); // Notebook 7 has one document
      }
      void this.#tracker.add(tab);
    }
    this.shell.activateById(id);
  }

  /** Beside another one, else beside the notebook. */
  #place(): { mode: 'tab-after' | 'split-right'; ref?: string } {
    const other = this.#tracker.find(tab => tab.isAttached);
    return other ? { mode: 'tab-after', ref: other.id } : { mode: 'split-right' };
  }
}

function wishOf({ kernel, mesh, kind }: ReadonlyPartialJSONObject): [string, string, Kind] {
  return [kernel as string, mesh as string, kind === 'curves' ? 'curves' : 'view'];
}
