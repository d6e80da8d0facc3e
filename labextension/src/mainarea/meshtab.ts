/**
 * A mesh, or only its curves, as a tab of the main area: live, whatever becomes of the cell and the notebook that it
 * came from, until its kernel ends.
 */

import { Widget } from '@lumino/widgets';

import { type Connection, element, mountMesh, setText } from '../front.js';
import type { Link } from '../kernel/links.js';
import type { Lease } from '../server/kernels.js';

/** What a tab shows of a mesh. */
export type Kind = 'view' | 'curves';

/** What a tab asks of the page. */
export interface TabPage {
  jump(kernel: string, connection: Connection, number: number): void;
  showLogs(link: Link, mesh: string, ranks: string): void;
  /** Its kernel has ended: the tab is to go. */
  hasEnded(): void;
}

const NO_CURVES = 'No curves yet. They come as ranks call monarch_nb.log(step, loss=loss).';

export class MeshTab extends Widget {
  readonly #note = element('div', 'lab-note');
  readonly #place = element('div', 'lab-tab-view');
  #view: ReturnType<typeof mountMesh> | null = null;
  #shown: Connection | null = null;
  #undo: () => void = () => undefined;
  #unhear: () => void = () => undefined;

  constructor(
    private readonly lease: Lease,
    readonly mesh: string,
    readonly kind: Kind,
    private readonly page: TabPage
  ) {
    super();
    this.addClass('mnb-palette');
    this.addClass('mnb-lab-tab');
    this.toggleClass('mnb-lab-curves', kind === 'curves');
    this.#note.setAttribute('role', 'status');
    this.node.tabIndex = -1;
    this.node.append(this.#note, this.#place);
  }

  get kernelId(): string {
    return this.lease.link.kernel.id;
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.#undo();
      this.#unhear();
      this.#view?.dispose();
      this.lease.release();
    }
    super.dispose();
  }

  /** Pictures take their colours from where they stand. */
  protected override onAfterAttach(): void {
    this.#undo();
    this.#undo = this.lease.link.changed.add(() => { this.#take(); });
    this.#take();
  }

  protected override onActivateRequest(): void {
    this.node.focus();
  }

  #take(): void {
    const { link } = this.lease;
    const { connection, kernel } = link;
    if (kernel.isDisposed || kernel.status === 'dead' || kernel.status === 'terminating') {
      this.page.hasEnded();
    } else if (connection && connection !== this.#shown) {
      this.#mount(connection);
    } else if (!this.#view) {
      setText(this.#note, 'Asking the kernel for its mesh…');
    }
    this.#note.hidden = !this.#note.textContent;
  }

  #mount(connection: Connection): void {
    this.#unhear();
    this.#view?.dispose();
    this.#shown = connection;
    setText(this.#note, '');
    this.#view = mountMesh(this.#place, connection, {
      mesh: this.mesh,
      ranks: null,
      onJump: number => { this.page.jump(this.kernelId, connection, number); },
      onLogs: (mesh, ranks) => { this.page.showLogs(this.lease.link, mesh, ranks); }
    });
    if (this.kind === 'curves') {
      this.#unhear = connection.model.onChange(() => { this.#tellEmpty(connection); });
      this.#tellEmpty(connection);
    }
  }

  #tellEmpty({ model }: Connection): void {
    const mesh = model.meshes.get(this.mesh);
    setText(this.#note, mesh && !mesh.curves.size ? NO_CURVES : '');
    this.#note.hidden = !this.#note.textContent;
  }
}
