/** The side panel. Many pages never show it, so what is in it is loaded when it is shown first. */

import { Widget } from '@lumino/widgets';

import { showError } from '../actions.js';
import type { Current } from '../kernel/current.js';
import { meshIcon } from '../ui/icons.js';
import type { Meshes } from './meshes.js';
import type { Page } from './section.js';

export class MeshPanel extends Widget {
  readonly #load: () => Promise<Meshes>;
  #meshes: Promise<Meshes> | null = null;

  constructor(current: Current, page: Page) {
    super();
    this.id = 'monarch-nb-panel';
    this.addClass('mnb-palette');
    this.addClass('mnb-lab-panel');
    this.title.icon = meshIcon;
    this.title.caption = 'Mesh';
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'Mesh');
    this.#load = async () => {
      const { Meshes } = await import(/* webpackChunkName: 'later-panel' */ './meshes.js');
      return new Meshes(this.node, current, page, () => this.isVisible);
    };
  }

  /** Show the form, and let the user type; once the kernel has told its meshes. */
  askForMesh(): void {
    this.#whenLoaded(meshes => { meshes.askForMesh(); });
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

  #show(): void {
    if (this.isVisible) {
      this.#whenLoaded(meshes => { meshes.refresh(); });
    }
  }

  /** Ask the server once more when it is shown again, should it not have answered. */
  #whenLoaded(then: (meshes: Meshes) => void): void {
    this.#meshes ??= this.#load();
    this.#meshes.then(then).catch((error: unknown) => {
      this.#meshes = null;
      showError(error);
    });
  }
}
