/** The side panel. Many pages never show it, so what is in it is loaded when it is shown first. */

import { Widget } from '@lumino/widgets';

import { showError } from '../actions.js';
import type { Current } from '../kernel/current.js';
import type { ServerKernels } from '../server/kernels.js';
import type { Ways } from '../server/meshlist.js';
import { meshIcon } from '../ui/icons.js';
import type { Meshes } from './meshes.js';
import type { Page } from './section.js';

export class MeshPanel extends Widget {
  #meshes: Promise<Meshes | null> | null = null;

  constructor(
    private readonly current: Current,
    private readonly page: Page,
    private readonly kernels: ServerKernels,
    private readonly ways: Ways
  ) {
    super();
    this.id = 'monarch-nb-panel';
    this.addClass('mnb-palette');
    this.addClass('mnb-lab-panel');
    this.title.icon = meshIcon;
    this.title.caption = 'Mesh';
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'Mesh');
  }

  /** Show the form, and let the user type; once the kernel has told its meshes. */
  askForMesh(): void {
    this.#whenLoaded(meshes => { meshes.askForMesh(); });
  }

  /** Bring a mesh into sight, once the panel tells of that kernel. */
  reveal(kernel: string, mesh: string): void {
    this.#whenLoaded(meshes => { meshes.reveal(kernel, mesh); });
  }

  /** The next Tab goes to its first button. */
  protected override onActivateRequest(): void {
    this.node.focus();
  }

  protected override onAfterShow(): void {
    this.#show();
  }

  protected override onAfterAttach(): void {
    this.#show();
  }

  protected override onAfterHide(): void {
    void this.#meshes?.then(meshes => { meshes?.rest(); });
  }

  #show(): void {
    if (this.isVisible) {
      this.#whenLoaded(meshes => { meshes.refresh(); });
    }
  }

  #whenLoaded(then: (meshes: Meshes) => void): void {
    this.#meshes ??= this.#load();
    void this.#meshes.then(meshes => {
      if (meshes) {
        then(meshes);
      }
    });
  }

  /** Null where the server does not answer: it is asked again when the panel is shown again. */
  async #load(): Promise<Meshes | null> {
    try {
      const { Meshes } = await import(/* webpackChunkName: 'later-views' */ './meshes.js');
      const { MeshList } = await import(/* webpackChunkName: 'later-views' */ '../server/meshlist.js');
      const isVisible = () => this.isVisible;
      const list = new MeshList(this.kernels, this.ways, isVisible);
      return new Meshes(this.node, this.current, this.page, list, isVisible);
    } catch (error) {
      this.#meshes = null;
      const why = error instanceof Error ? error.message : String(error);
      showError(new Error(`The Mesh panel could not be loaded: ${why}. Show it again to try once more.`));
      return null;
    }
  }
}
