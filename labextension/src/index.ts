/** The mesh of a Monarch kernel in JupyterLab: panel, status bar, logs, cell buttons, outputs. */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';

import { showError, showNote } from './actions.js';
import { adoptBegunCells } from './cells/begun.js';
import { Chooser } from './cells/chooser.js';
import { runInNewCell } from './cells/inserting.js';
import { jumpToNumber } from './cells/jump.js';
import { closeOldQuestions } from './cells/questions.js';
import { tagCells } from './cells/tags.js';
import { addCommands, COMMANDS, OFFERED } from './commands.js';
import { Current } from './kernel/current.js';
import { Links } from './kernel/links.js';
import { MainPanels } from './mainarea/mainpanels.js';
import type { Kind } from './mainarea/meshtab.js';
import { MeshTabs } from './mainarea/meshtabs.js';
import type { NoticeChoice } from './news/notices.js';
import { tellInTitle } from './news/tabtitle.js';
import { meshRendererFactory, RANK } from './outputs/meshrenderer.js';
import { MeshPanel } from './panel/panel.js';
import { type MeshKernel, ServerKernels } from './server/kernels.js';
import { StatusItem } from './status.js';

const ID = 'monarch-nb:plugin';

/** How often the status bar is told, ms. */
const IDLE_MS = 1_000;

const plugin: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Monarch meshes',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, ISettingRegistry, IStatusBar, ILabShell, ILayoutRestorer, IRenderMimeRegistry],
  activate
};

function activate(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  palette: ICommandPalette | null,
  registry: ISettingRegistry | null,
  statusBar: IStatusBar | null,
  labShell: ILabShell | null,
  restorer: ILayoutRestorer | null,
  rendermime: IRenderMimeRegistry | null
): void {
  const { commands, shell } = app;
  let settings: Settings = DEFAULTS;
  const links = new Links(IDLE_MS, () => settings.period);
  const current = new Current(tracker, links);
  const mains = new MainPanels(shell, settings);
  const kernels = new ServerKernels(app.serviceManager, links, () => settings.period);
  const notebookOf = (id: string) =>
    tracker.find(({ sessionContext }) => sessionContext.session?.kernel?.id === id) ?? null;
  const tabs = new MeshTabs(shell, kernels, {
    jump: (kernel, connection, number) => {
      const notebook = notebookOf(kernel);
      if (notebook) {
        shell.activateById(notebook.id);
        void jumpToNumber(notebook, connection, number);
      } else {
        showNote(`It is cell In [${number}] of a notebook that is not open here.`);
      }
    },
    showLogs: (link, mesh, ranks) => {
      void mains.showLogs(links.known(link.kernel.id) ?? link, mesh, ranks);
    }
  });
  if (restorer) {
    tabs.restoreWith(restorer, commands);
  }
  const page = pageOf(current, mains, tabs);

  const panel = new MeshPanel(current, page, kernels, {
    show: (kernel, mesh) => { void showNotebook(kernel, mesh); },
    openTab: ({ id }, mesh) => { void tabs.open(id, mesh, 'view'); }
  });
  const showNotebook = async ({ id, path }: MeshKernel, mesh: string) => {
    const notebook = notebookOf(id);
    if (notebook) {
      shell.activateById(notebook.id);
    } else {
      await commands.execute('docmanager:open', { path }).catch(showError);
    }
    panel.reveal(id, mesh);
  };
  shell.add(panel, 'left', { rank: 210, type: 'Mesh' });
  restorer?.add(panel, panel.id);
  const open = () => {
    shell.activateById(panel.id);
  };
  const togglePanel = () => {
    if (labShell && panel.isVisible) {
      labShell.collapseLeft();
    } else {
      open();
    }
  };
  const askForMesh = () => {
    open();
    panel.askForMesh();
  };

  const status = new StatusItem(current, open);
  statusBar?.registerStatusItem('monarch-nb:status', {
    item: status,
    align: 'left',
    rank: 50,
    isActive: () => status.isActive,
    activeStateChanged: status.activeChanged
  });

  tellInTitle(current);
  const activateById = (id: string) => { shell.activateById(id); };
  void import(/* webpackChunkName: 'later-notices' */ './news/notices.js').then(
    ({ Notices }) => new Notices(tracker, links, activateById, () => settings)
  );
  closeOldQuestions(tracker);
  adoptBegunCells(tracker, links);
  const chooser = new Chooser(commands);
  tagCells(tracker, links, tag => { chooser.open(current.meshes, tag, true); });
  const { showLogs, showStacks, openTab } = page;
  const isCellButtonWanted = () => settings.cellButton;
  addCommands({
    ...{ commands, tracker, current, chooser, isCellButtonWanted },
    ...{ togglePanel, askForMesh, showLogs, showStacks, openTab }
  });
  for (const command of OFFERED) {
    palette?.addItem({ command, category: 'Monarch' });
  }
  const tellCommands = () => {
    for (const command of COMMANDS) {
      commands.notifyCommandChanged(command);
    }
  };
  current.changed.add(tellCommands);

  rendermime?.addFactory(
    meshRendererFactory({
      tracker,
      links,
      showLogs: (link, mesh, ranks) => {
        void mains.showLogs(link, mesh, ranks);
      }
    }),
    RANK
  );

  const take = (changed: Settings) => {
    settings = changed;
    links.setPeriod();
    mains.choice = settings;
    status.isWanted = settings.statusBar;
    status.refresh();
    tellCommands();
  };
  if (registry) {
    followSettings(registry, ID, take).catch((reason: unknown) => {
      console.warn('monarch-nb:', reason);
    });
  }
}

/** What views ask of the page, about the current notebook. */
function pageOf(current: Current, mains: MainPanels, tabs: MeshTabs) {
  return {
    jump: (number: number): void => {
      const { panel, connection } = current;
      if (panel && connection) {
        void jumpToNumber(panel, connection, number);
      }
    },
    showLogs: (mesh: string, ranks: string | null): void => {
      if (current.link) {
        void mains.showLogs(current.link, mesh, ranks);
      }
    },
    showStacks: (mesh: string, ranks: string): void => {
      if (current.link) {
        void mains.showStacks(current.link, mesh, ranks);
      }
    },
    showTensor: (mesh: string, variable: string, rank: number): void => {
      if (current.link) {
        void mains.showTensor(current.link, mesh, variable, rank);
      }
    },
    openTab: (mesh: string, kind: Kind): void => {
      if (current.link) {
        void tabs.open(current.link.kernel.id, mesh, kind);
      }
    },
    run: async (line: string): Promise<void> => {
      const { panel } = current;
      await (panel && runInNewCell(panel, line)); // below it comes what the ranks print
    }
  };
}

export default plugin;

export interface Settings extends NoticeChoice {
  /** How often what is looked at is told, ms. */
  period: number;
  statusBar: boolean;
  cellButton: boolean;
  logLines: number;
  logTimes: boolean;
}

export const DEFAULTS: Readonly<Settings> = {
  period: 100,
  statusBar: true,
  cellButton: true,
  notify: true,
  notifyAfter: 60,
  logLines: 50_000,
  logTimes: false
};

/** Tell the settings, and tell them again whenever the user changes them. */
export async function followSettings(
  registry: ISettingRegistry,
  id: string,
  tell: (settings: Settings) => void
): Promise<void> {
  const settings = await registry.load(id);
  const read = () => {
    tell({ ...DEFAULTS, ...(settings.composite as Partial<Settings>) });
  };
  settings.changed.connect(read);
  read();
}
