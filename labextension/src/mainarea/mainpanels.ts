/**
 * Logs, stacks and tensors in the main area: one panel for each mesh of a kernel, or each variable. Most pages
 * never show one, so what is in them is loaded when the first is shown.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { MainAreaWidget } from '@jupyterlab/apputils';
import type { Widget } from '@lumino/widgets';

import type { Link } from '../kernel/links.js';
import { meshIcon } from '../ui/icons.js';
import type { LogChoice, LogPanel } from './logpanel.js';
import type { TensorPanel } from '../variables/tensorpanel.js';
import type { StacksPanel } from './stackspanel.js';

export class MainPanels {
  readonly #logs = new Map<string, MainAreaWidget<LogPanel>>();
  readonly #stacks = new Map<string, MainAreaWidget<StacksPanel>>();
  readonly #tensors = new Map<string, MainAreaWidget<TensorPanel>>();

  constructor(
    private readonly shell: JupyterFrontEnd.IShell,
    private logs: LogChoice
  ) {}

  async showLogs(link: Link, mesh: string, ranks: string | null): Promise<void> {
    const { LogPanel } = await import(/* webpackChunkName: 'later-logs' */ './logpanel.js');
    const make = () => new LogPanel(link, mesh, this.logs);
    this.#panel(this.#logs, link, `Logs of ${mesh}`, mesh, make).choose(ranks);
  }

  async showStacks(link: Link, mesh: string, ranks: string): Promise<void> {
    const { StacksPanel } = await import(/* webpackChunkName: 'later-stacks' */ './stackspanel.js');
    const make = () => new StacksPanel(link, mesh);
    this.#panel(this.#stacks, link, `Stacks of ${mesh}`, mesh, make).choose(ranks);
  }

  async showTensor(link: Link, mesh: string, variable: string, rank: number): Promise<void> {
    const { TensorPanel } = await import(/* webpackChunkName: 'later-tensor' */ '../variables/tensorpanel.js');
    const make = () => new TensorPanel(link, mesh, variable);
    const label = `${variable} of ${mesh}`;
    this.#panel(this.#tensors, link, label, label, make).choose(rank);
  }

  set choice(logs: LogChoice) {
    this.logs = logs;
    for (const { content } of this.#logs.values()) {
      content.take(logs);
    }
  }

  #panel<T extends Widget>(
    known: Map<string, MainAreaWidget<T>>,
    link: Link,
    label: string,
    name: string,
    make: () => T
  ): T {
    const key = `${link.kernel.id} ${name}`;
    const panel = known.get(key) ?? new MainAreaWidget({ content: make() });
    if (!known.has(key)) {
      known.set(key, panel);
      panel.disposed.connect(() => known.delete(key));
      panel.id = `monarch-nb-${label.replace(/\W+/g, '-')}-${link.kernel.id}`;
      panel.title.label = label;
      panel.title.icon = meshIcon;
      panel.title.closable = true;
      panel.toolbar.hide();
      this.shell.add(panel, 'main', { ...this.#place(panel.id), type: 'Mesh' });
      if (!panel.isAttached) {
        this.shell.add(panel, 'right', { type: 'Mesh' }); // Notebook 7 has one document
      }
    }
    this.shell.activateById(panel.id);
    return panel.content;
  }

  /** Beside another of these panels, else below the notebook. */
  #place(id: string): { mode: 'tab-after' | 'split-bottom'; ref?: string } {
    const others = [...this.#logs.values(), ...this.#stacks.values(), ...this.#tensors.values()];
    const other = others.find(one => one.isAttached && one.id !== id);
    return other ? { mode: 'tab-after', ref: other.id } : { mode: 'split-bottom' };
  }
}
