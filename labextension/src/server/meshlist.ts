/**
 * All meshes of all kernels of this server, a row each: where, how many ranks, how they are, with a way there.
 * Rule of the file: while nobody sees the list no kernel is connected for it; kernels are asked one after the other,
 * and one that does not answer is a row as well.
 */

import { button, element, setText } from '../front.js';
import type { Link } from '../kernel/links.js';
import { markNode, named } from '../ui/elements.js';
import type { Lease, MeshKernel, ServerKernels } from './kernels.js';
import { type Told, toldOf } from './told.js';

/** The next kernel is asked when this one has answered, or now. */
const PATIENCE_MS = 2_000;

/** What the list asks of the page. */
export interface Ways {
  /** To the notebook, and to this mesh of it; "": to none. */
  show(kernel: MeshKernel, mesh: string): void;
  openTab(kernel: MeshKernel, mesh: string): void;
}

export class MeshList {
  readonly node = element('details', 'lab-all');
  readonly #head = element('summary', 'lab-sub');
  readonly #rows = named(element('div', 'lab-all-rows'), 'All meshes of this server');
  readonly #drawn = new Map<string, Row>();
  /** What each kernel has told, by its id. */
  #told = new Map<string, Told[]>();
  readonly #leases = new Map<string, Lease>();
  readonly #heard = new Map<Link, () => void>();
  #isConnecting = false;

  constructor(
    private readonly kernels: ServerKernels,
    private readonly ways: Ways,
    private readonly isVisible: () => boolean
  ) {
    this.#rows.setAttribute('role', 'list');
    this.node.append(this.#head, this.#rows);
    this.node.addEventListener('toggle', () => { this.update(); });
    kernels.changed.add(() => { this.update(); });
  }

  /** After the panel has come into sight or left it, or kernels have come or gone. */
  update(): void {
    const all = this.kernels.all;
    this.node.hidden = all.length < 2; // of one the panel tells all
    setText(this.#head, `Meshes of all notebooks (${all.length})`);
    if (!this.isVisible() || !this.node.open || this.node.hidden) {
      this.#rest();
      return;
    }
    for (const [id, lease] of this.#leases) {
      if (!all.some(kernel => kernel.id === id) || this.kernels.known(id)) {
        this.#leases.delete(id);
        this.#forget(lease.link);
        lease.release();
      }
    }
    this.#follow(all);
    this.#draw(all);
    void this.#connect();
  }

  #rest(): void {
    for (const link of this.#heard.keys()) {
      this.#forget(link);
    }
    for (const lease of this.#leases.values()) {
      lease.release();
    }
    this.#leases.clear();
  }

  #forget(link: Link): void {
    this.#heard.get(link)?.();
    this.#heard.delete(link);
  }

  #linkOf(id: string): Link | null {
    return this.kernels.known(id) ?? this.#leases.get(id)?.link ?? null;
  }

  async #connect(): Promise<void> {
    if (this.#isConnecting) {
      return;
    }
    this.#isConnecting = true;
    for (let next; (next = this.#notAsked()); ) {
      const lease = this.kernels.borrow(next);
      this.#leases.set(next.id, lease);
      this.#follow([next]);
      await hasOpened(lease.link);
    }
    this.#isConnecting = false;
  }

  /** Of the kernels that are in sight. */
  #notAsked(): MeshKernel | undefined {
    const isSeen = this.isVisible() && this.node.open && !this.node.hidden;
    return isSeen ? this.kernels.all.find(({ id }) => !this.#linkOf(id)) : undefined;
  }

  /** Hear of each change of what is told. */
  #follow(all: readonly MeshKernel[]): void {
    const draw = () => { this.#draw(this.kernels.all); };
    for (const { id } of all) {
      const link = this.#linkOf(id);
      if (link && !this.#heard.has(link)) {
        let unhear = link.connection?.model.onChange(draw);
        const unfollow = link.changed.add(() => {
          unhear?.();
          unhear = link.connection?.model.onChange(draw);
          this.update(); // where its notebook was closed, it is asked otherwise
        });
        this.#heard.set(link, () => {
          unhear?.();
          unfollow();
        });
      }
    }
  }

  /** Rows stay where they are: somebody may be at a button. */
  #draw(all: readonly MeshKernel[]): void {
    const tell = (one: MeshKernel) => toldOf(one, this.#linkOf(one.id), this.#told.get(one.id));
    this.#told = new Map(all.map(kernel => [kernel.id, tell(kernel)]));
    const told = [...this.#told.values()].flat();
    const keys = new Set(told.map(keyOf));
    for (const [key, row] of this.#drawn) {
      if (!keys.has(key)) {
        row.node.remove();
        this.#drawn.delete(key);
      }
    }
    told.forEach((one, place) => {
      const row = this.#drawn.get(keyOf(one)) ?? new Row(one, this.ways);
      this.#drawn.set(keyOf(one), row);
      row.update(one);
      if (this.#rows.children[place] !== row.node) {
        this.#rows.insertBefore(row.node, this.#rows.children[place] ?? null);
      }
    });
  }
}

class Row {
  readonly node = element('div', 'lab-all-row');
  readonly #mark = element('span', 'lab-all-mark');
  readonly #said = element('span', 'lab-all-said');
  #state = '';

  constructor({ kernel, mesh }: Told, ways: Ways) {
    const where = mesh ? `${mesh} of ${kernel.name}` : kernel.name;
    const show = button(mesh || kernel.name, `show ${where}`, () => { ways.show(kernel, mesh); });
    named(show, show.title);
    show.className = 'mnb-link';
    const name = element('span', 'lab-all-name');
    name.append(show);
    this.node.setAttribute('role', 'listitem');
    this.node.append(this.#mark, name, this.#said);
    if (mesh) {
      name.append(' ', element('span', 'lab-all-said', kernel.name));
      const tab = button('tab', `open ${where} as a tab`, () => { ways.openTab(kernel, mesh); });
      this.node.append(named(tab, tab.title));
    }
  }

  update({ said, state }: Told): void {
    setText(this.#said, said);
    if (state !== this.#state) {
      this.#state = state;
      this.#mark.replaceChildren(...(state ? [markNode(state)] : []));
    }
  }
}

function keyOf({ kernel, mesh }: Told): string {
  return [kernel.id, kernel.name, mesh].join(' '); // notebooks can be given other names
}

/** Settles when it has an answer, or after a while. */
function hasOpened(link: Link): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer);
      undo();
      resolve();
    };
    const undo = link.changed.add(() => {
      if (link.phase !== 'opening') {
        end();
      }
    });
    const timer = setTimeout(end, PATIENCE_MS);
  });
}
