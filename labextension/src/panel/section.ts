/** One mesh in the side panel: the view that widgets show too, and its hosts, ranks, variables and actors as lists. */

import { act, allOf } from '../actions.js';
import { button, type Connection, element, type Mesh, mountMesh, runsText, setText } from '../front.js';
import type { Kind } from '../mainarea/meshtab.js';
import { VariablesSection } from '../variables/variablessection.js';
import { ActorTable } from './actortable.js';
import { DebuggerChoice } from './debuggerchoice.js';
import { JobLine } from './jobs.js';
import { RankList } from './ranklist.js';
import { ReplayRow } from './replay.js';

/** What the section asks of the page. */
export interface Page {
  jump(number: number): void;
  showLogs(mesh: string, ranks: string | null): void;
  showStacks(mesh: string, ranks: string): void;
  showTensor(mesh: string, variable: string, rank: number): void;
  openTab(mesh: string, kind: Kind): void;
  /** Settles when a new cell with this line has run. */
  run(line: string): Promise<void>;
}

export class MeshSection {
  readonly #connection: Connection;
  readonly #page: Page;
  readonly node = element('section', 'lab-section');
  readonly #hosts = element('div', 'lab-hosts');
  readonly #replay: ReplayRow;
  readonly #job: JobLine;
  readonly #actors = new ActorTable();
  readonly #list: RankList;
  readonly #variables: VariablesSection;
  readonly #use = button('use for %%mesh', '', () => {
    void act(this.#connection, 'use', { mesh: this.name });
  });
  readonly #curves = button('curves as a tab', 'its curves beside the notebook', () => {
    this.#page.openTab(this.name, 'curves');
  });
  readonly #debugger: DebuggerChoice;
  readonly #ranks = element('details', 'lab-ranks');
  readonly #view: ReturnType<typeof mountMesh>;

  /** It is put into `parent` first: pictures take their colours from where they stand. */
  constructor(
    parent: HTMLElement,
    connection: Connection,
    readonly name: string,
    page: Page
  ) {
    this.#connection = connection;
    this.#page = page;
    parent.append(this.node);
    this.node.setAttribute('aria-label', `Mesh ${name}`);
    this.#list = new RankList(connection.model, name, ranks => {
      this.#view.select(ranks);
    });
    this.#ranks.append(element('summary', 'lab-sub', 'Ranks'), this.#list.node);
    this.#ranks.addEventListener('toggle', () => {
      this.#list.update();
    });
    const place = element('div', 'lab-view');
    this.#debugger = new DebuggerChoice(connection, name);
    this.#job = new JobLine(connection, name);
    this.#replay = new ReplayRow(connection, name, line => page.run(line));
    this.#variables = new VariablesSection(connection, name, (variable, rank) => {
      page.showTensor(name, variable, rank);
    });
    const below = [this.#hosts, this.#job.node, this.#ranks, this.#variables.node, this.#actors.node];
    this.node.append(place, this.#replay.node, this.#use, this.#curves, this.#debugger.node, ...below);
    this.#view = mountMesh(place, connection, {
      mesh: name,
      ranks: null,
      onJump: number => {
        page.jump(number);
      },
      onLogs: (mesh, ranks) => {
        page.showLogs(mesh, ranks);
      },
      onSelect: ranks => {
        this.#debugger.select(ranks);
      },
      offers: this.#offers()
    });
    this.update();
  }

  dispose(): void {
    this.#view.dispose();
    this.node.remove();
  }

  /** After a cell; one with `%mesh` in it may have given ranks what they lacked. */
  cellHasRun(isOfMesh: boolean): void {
    this.#variables.refresh();
    if (isOfMesh) {
      void this.#replay.ask();
    }
  }

  /** After the model has changed. */
  update(): void {
    const mesh = this.#mesh;
    if (!mesh) {
      return;
    }
    const { hosts } = this.#connection.model;
    this.#hosts.hidden = hosts.length < 2;
    setText(this.#hosts, hosts.length < 2 ? '' : hostsText(this.#connection, mesh));
    this.#replay.update(mesh);
    this.#job.update();
    this.#actors.update(mesh);
    this.#variables.update(mesh);
    this.#tellCurrent();
    this.#curves.hidden = mesh.curves.size === 0;
    if (this.#ranks.open) {
      this.#list.update();
    }
  }

  /** Of several meshes one is what `%%mesh` means. */
  #tellCurrent(): void {
    const { current, meshes } = this.#connection.model;
    const isCurrent = current === this.name;
    this.#use.hidden = meshes.size < 2;
    this.#use.disabled = isCurrent;
    setText(this.#use, isCurrent ? '%%mesh runs here' : 'use for %%mesh');
  }

  get #mesh(): Mesh | undefined {
    return this.#connection.model.meshes.get(this.name);
  }

  #offers() {
    const logs = () => {
      this.#page.showLogs(this.name, null);
    };
    const stacks = () => {
      if (this.#mesh) {
        this.#page.showStacks(this.name, allOf(this.#mesh));
      }
    };
    return [
      { text: 'logs', title: 'what the ranks have written', act: logs },
      { text: 'stacks', title: 'where the ranks are now', act: stacks },
      { text: 'tab', title: 'this view as a tab of its own', act: () => { this.#page.openTab(this.name, 'view'); } }
    ];
  }
}

/** "this machine: 0-3 · node2: 4-7" */
function hostsText({ model }: Connection, mesh: Mesh): string {
  const ranks = new Map<number, number[]>();
  for (let rank = 0; rank < mesh.size; rank++) {
    const host = mesh.host(rank);
    const some = ranks.get(host) ?? [];
    some.push(rank);
    ranks.set(host, some);
  }
  return [...ranks]
    .filter(([host]) => host in model.hosts)
    .map(([host, some]) => {
      const { name, ended } = model.hosts[host];
      return `${name}: ${runsText(some)}${ended ? ` (${ended})` : ''}`;
    })
    .join(' · ');
}
