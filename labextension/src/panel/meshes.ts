/** What is in the side panel: the meshes of the current notebook's kernel, or how to begin. */

import { NotebookActions } from '@jupyterlab/notebook';

import { showError, showNote } from '../actions.js';
import { button, type Connection, element, setText } from '../front.js';
import type { Current } from '../kernel/current.js';
import type { MeshList } from '../server/meshlist.js';
import { JobRows } from './jobs.js';
import { type KeptMeshes, KeptRows } from './kept.js';
import { MeshSection, type Page } from './section.js';
import { UpForm } from './upform.js';
import type { Where } from './upline.js';

const NO_NOTEBOOK = 'Open a notebook to see its mesh.';
const NO_MESH =
  "This notebook's kernel has no mesh. Choose the Monarch kernel, or run %load_ext monarch_nb.";
const LOAD = '%load_ext monarch_nb';
const KEPT = 'These ranks have outlived their kernel. Attach them, or bring up another mesh.';
const BEGIN = 'No mesh is up yet. A mesh is a set of processes, one for each GPU or each share of the work.';

interface Engines {
  engines: Omit<Where, 'title' | 'words'>[];
  profiles: { name: string; words: string }[];
}

export class Meshes {
  readonly #note = element('div', 'lab-note');
  readonly #load = button('Load monarch_nb here', `Run ${LOAD} in this kernel`, () => {
    void this.#loadExtension();
  });
  readonly #sections = element('div', 'lab-sections');
  readonly #more = element('details', 'lab-more');
  readonly #form = new UpForm(line => this.#up(line));
  readonly #jobs = new JobRows();
  readonly #kept = new KeptRows(line => this.page.run(line));
  readonly #byName = new Map<string, MeshSection>();
  #shown: Connection | null = null;
  #undo: (() => void)[] = [];
  #isDue = false;
  /** What is to come into sight. */
  #wanted: { kernel: string; mesh: string } | null = null;

  constructor(
    private readonly node: HTMLElement,
    private readonly current: Current,
    private readonly page: Page,
    private readonly list: MeshList,
    private readonly isVisible: () => boolean
  ) {
    this.#note.setAttribute('role', 'status');
    this.#more.append(element('summary', 'lab-sub', 'Bring up another mesh'));
    this.#load.classList.add('mnb-lab-load');
    this.#load.hidden = true;
    node.append(list.node, this.#note, this.#load, this.#kept.node, this.#jobs.node, this.#sections, this.#more);
    current.changed.add(() => { this.refresh(); });
    NotebookActions.executed.connect((_, { notebook, cell }) => {
      if (notebook !== current.panel?.content) {
        return;
      }
      const isOfMesh = cell.model.sharedModel.getSource().includes('%mesh');
      if (isOfMesh) {
        void this.#askKept(); // it may have kept a mesh, or ended one
      }
      for (const section of this.#byName.values()) {
        section.cellHasRun(isOfMesh);
      }
    });
  }

  /** Show the form, and let the user type; once the kernel has told its meshes. */
  askForMesh(): void {
    this.#more.open = true;
    this.#form.focus();
  }

  /** Take the news of the current connection, and of no other. */
  refresh(): void {
    const { connection } = this.current;
    if (connection !== this.#shown) {
      this.#leave();
      this.#shown = connection;
      const later = () => {
        this.#later();
      };
      this.#undo = connection ? [connection.model.onChange(later), connection.onState(later)] : [];
      this.#form.offer([]);
      this.#kept.show([]);
      void this.#askWhere(connection);
    }
    void this.#askKept();
    this.list.update();
    this.#draw();
  }

  /** Nobody sees the panel any more. */
  rest(): void {
    this.list.update();
  }

  /** Bring a mesh into sight, once this is the kernel that is told of. */
  reveal(kernel: string, mesh: string): void {
    this.#wanted = { kernel, mesh };
    this.#later();
  }

  #leave(): void {
    for (const undo of this.#undo.splice(0)) {
      undo();
    }
    for (const section of this.#byName.values()) {
      section.dispose();
    }
    this.#byName.clear();
  }

  #later(): void {
    if (!this.#isDue) {
      this.#isDue = true;
      requestAnimationFrame(() => {
        this.#isDue = false;
        this.#draw();
      });
    }
  }

  /** Nothing while nobody sees it. */
  #draw(): void {
    if (!this.isVisible()) {
      return;
    }
    const connection = this.#shown;
    const isReady = connection !== null && connection.model.n >= 0;
    this.#jobs.update(isReady ? connection : null);
    const hadMesh = this.#byName.size > 0;
    this.#drawSections(connection);
    this.#showWanted();
    const hasMesh = this.#byName.size > 0;
    if (hadMesh && !hasMesh) {
      void this.#askKept();
    }
    this.#kept.node.hidden = !isReady || hasMesh; // one kernel drives its own meshes, or others'
    setText(this.#note, this.#noteText());
    this.#note.hidden = !this.#note.textContent;
    void this.#offerToLoad();
    this.#drawForm(isReady, hasMesh);
  }

  #showWanted(): void {
    const { kernel, mesh } = this.#wanted ?? {};
    const found = this.#byName.get(mesh ?? '');
    if (found && kernel === this.current.link?.kernel.id) {
      this.#wanted = null;
      found.node.scrollIntoView();
    }
  }

  #noteText(): string {
    const { panel, link } = this.current;
    if (!panel) {
      return NO_NOTEBOOK;
    }
    if (!link || link.phase === 'plain') {
      return NO_MESH;
    }
    const { connection } = link;
    if (!connection) {
      return link.phase === 'opening' ? 'Asking the kernel for its mesh…' : link.why;
    }
    if (connection.state === 'lost') {
      return connection.why;
    }
    if (connection.model.n < 0) {
      return 'Asking the kernel for its mesh…';
    }
    if (this.#byName.size) {
      return '';
    }
    return this.#kept.canAttach ? KEPT : [link.why, BEGIN].filter(Boolean).join(' ');
  }

  /** Where the kernel is a plain one of Python. */
  async #offerToLoad(): Promise<void> {
    const { link } = this.current;
    this.#load.hidden ||= link?.phase !== 'plain';
    if (link?.phase !== 'plain' || link.kernel.isDisposed) {
      return;
    }
    const info = await link.kernel.info;
    if (link === this.current.link) {
      const isPython = info.language_info.name === 'python';
      this.#load.hidden = !isPython || this.current.link.phase !== 'plain';
    }
  }

  /** A kernel that has loaded it says so; see `Links`. */
  async #loadExtension(): Promise<void> {
    const { link } = this.current;
    if (!link) {
      return;
    }
    this.#load.disabled = true;
    const { content } = await link.kernel.requestExecute({ code: LOAD, store_history: false }).done;
    this.#load.disabled = false;
    if (content.status !== 'ok') {
      const { ename = '', evalue = '' } = content as { ename?: string; evalue?: string };
      const advice = 'Is it there? In a cell: %pip install monarch_nb';
      showError(new Error(`${LOAD}: ${ename}: ${evalue}. ${advice}`));
    }
  }

  #drawSections(connection: Connection | null): void {
    const names = [...(connection?.model.meshes.keys() ?? [])];
    for (const [name, section] of this.#byName) {
      if (!names.includes(name)) {
        section.dispose();
        this.#byName.delete(name);
      }
    }
    for (const name of connection ? names : []) {
      const known = this.#byName.get(name);
      if (known) {
        known.update();
      } else if (connection) {
        const section = new MeshSection(this.#sections, connection, name, this.page);
        this.#byName.set(name, section);
      }
    }
  }

  /** Big where there is no mesh yet, folded away where there is one. */
  #drawForm(isReady: boolean, hasMesh: boolean): void {
    this.#more.hidden = !isReady || !hasMesh;
    this.#form.node.hidden = !isReady;
    this.#form.tellOthers(hasMesh);
    const place = hasMesh ? this.#more : this.node;
    if (this.#form.node.parentElement !== place) {
      place.append(this.#form.node);
    }
  }

  /** Once for each kernel: what it finds on its machine. */
  async #askWhere(connection: Connection | null): Promise<void> {
    const told = (await connection?.ask('engines').catch(() => null)) as Engines | null;
    if (told && connection === this.#shown) {
      this.#form.offer(wheresOf(told));
    }
  }

  /** Asked where they can be attached: while this kernel has no mesh, and somebody sees it. */
  async #askKept(): Promise<void> {
    const connection = this.#shown;
    if (!connection || !this.isVisible() || this.#byName.size) {
      return;
    }
    const told = (await connection.ask('kept').catch(() => null)) as { kept: KeptMeshes[] } | null;
    if (told && connection === this.#shown) {
      this.#kept.show(told.kept);
      this.#draw();
    }
  }

  async #up(line: string): Promise<string> {
    if (!this.#shown) {
      return '';
    }
    try {
      const { said } = await this.#shown.do('up', { line });
      showNote(said);
      this.#more.open = false;
      return '';
    } catch (error) {
      return (error as Error).message;
    }
  }
}

function wheresOf({ engines, profiles }: Engines): Where[] {
  const plain = { missing: '', options: [], required: [], places: false };
  return [
    ...profiles.map(({ name, words }) => ({ ...plain, name, words, title: `${name}: ${words}` })),
    ...engines.map(one => ({ ...one, title: one.name }))
  ];
}
