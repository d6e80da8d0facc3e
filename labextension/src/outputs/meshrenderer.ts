/**
 * A mesh in an output. Live over the notebook's link, which all outputs and the panel share; where the
 * kernel is gone, or is another one now, the mesh as it was last. That is saved with the notebook.
 */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { OutputArea } from '@jupyterlab/outputarea';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import { jumpToNumber } from '../cells/jump.js';
import { type Connection, element } from '../front.js';
import { followLink } from '../kernel/current.js';
import type { Link, Links } from '../kernel/links.js';
import { bundleOf, hasMore, isSame, MIME, readSaved, type Saved, Still } from './saved.js';
import type { mountMesh } from './views.js';

/** Before the widgets' own renderer (-10): one comm for a kernel is enough. */
export const RANK = -20;

/** What a renderer asks of the page. */
export interface Outputs {
  tracker: INotebookTracker;
  links: Links;
  showLogs(link: Link, mesh: string, ranks: string | null): void;
}

export function meshRendererFactory(outputs: Outputs): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [MIME],
    createRenderer: () => new MeshRenderer(outputs)
  };
}

class MeshRenderer extends Widget implements IRenderMime.IRenderer {
  #saved: Saved | string = 'nothing was saved here';
  #panel: NotebookPanel | null = null;
  #link: Link | null = null;
  #view: ReturnType<typeof mountMesh> | null = null;
  /** Until then nothing is drawn. */
  #mountMesh: typeof mountMesh | null = null;
  /** Of what is kept by ourselves nothing is drawn again. */
  #isKeeping = false;
  /** What is to be written with the next save. */
  #bundle: Record<string, unknown> | null = null;
  #unsaved: () => void = () => undefined;
  #undo: () => void = () => undefined;
  #unheard: () => void = () => undefined;
  /** The connection whose mesh this output shows; null: the picture. */
  #shown: Connection | null = null;
  #still: Still | null = null;

  constructor(private readonly outputs: Outputs) {
    super();
    this.addClass('mnb-palette');
    this.addClass('mnb-lab-output');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.#saved = readSaved(model.data[MIME]);
    if (this.#isKeeping) {
      return;
    }
    this.#clear();
    this.#mountMesh ??= (await import(/* webpackChunkName: 'later-views' */ './views.js')).mountMesh;
    if (this.isAttached) {
      this.#draw();
    }
  }

  override dispose(): void {
    this.#unsaved();
    this.#leave();
    super.dispose();
  }

  protected override onAfterAttach(): void {
    const find = (panel: NotebookPanel) => panel.node.contains(this.node);
    this.#panel = this.outputs.tracker.find(find) ?? null;
    if (this.#panel) {
      this.#followSaves(this.#panel);
      this.#undo = followLink(this.outputs.links, this.#panel, link => {
        this.#take(link);
      });
      void this.#panel.sessionContext.ready.then(() => {
        if (this.isAttached) {
          this.#draw();
        }
      });
    } else {
      this.#draw();
    }
  }

  protected override onBeforeDetach(): void {
    this.#keep();
    this.#leave();
  }

  /** A save begins with telling so, and takes what stands in the outputs then. */
  #followSaves(panel: NotebookPanel): void {
    this.#unsaved();
    const { saveState } = panel.context;
    const onSave = (_: unknown, state: string) => {
      if (state === 'started') {
        this.#write();
      }
    };
    saveState.connect(onSave);
    this.#unsaved = () => saveState.disconnect(onSave);
  }

  /** The mesh as it is now takes the place of the one that was saved. */
  #keep(): void {
    const saved = this.#saved;
    const kept = this.#shown && typeof saved !== 'string' ? this.#view?.keep() : null;
    if (!kept || typeof saved === 'string') {
      return;
    }
    const bundle = bundleOf(saved, kept, new Date());
    const last = readSaved(bundle[MIME]);
    if (typeof last !== 'string') {
      this.#saved = last;
      this.#bundle = bundle;
    }
  }

  /** In the notebook, too. */
  #write(): void {
    this.#keep();
    const bundle = this.#bundle;
    const area = outputAreaOf(this);
    const index = area?.widgets.findIndex(child => child.contains(this)) ?? -1;
    if (!bundle || !area || index < 0) {
      return;
    }
    const output = area.model.get(index).toJSON();
    this.#isKeeping = true;
    area.model.set(index, { ...output, data: bundle } as typeof output);
    this.#isKeeping = false;
    this.#bundle = null;
  }

  #leave(): void {
    this.#undo();
    this.#undo = () => undefined;
    this.#unheard();
    this.#unheard = () => undefined;
    this.#link = null;
    this.#clear();
  }

  #clear(): void {
    this.#view?.dispose();
    this.#view = null;
    this.#shown = null;
    this.node.replaceChildren();
  }

  #take(link: Link | null): void {
    this.#link = link;
    this.#unheard();
    this.#unheard = link?.connection?.model.onChange(({ all }) => { if (all) this.#draw(); }) ?? (() => undefined);
    this.#draw();
  }

  #draw(): void {
    const saved = this.#saved;
    if (typeof saved === 'string') {
      this.node.replaceChildren(element('div', 'lab-note', saved));
      return;
    }
    const connection = this.#link?.connection ?? null;
    const live = connection && isSame(saved, connection.model) ? connection : null;
    if (this.#view && live === this.#shown) {
      this.#tellGone();
      return;
    }
    const mount = this.#mountMesh;
    if (!mount || (!live && this.#isUndecided(connection))) {
      return;
    }
    this.#keep();
    this.#clear();
    this.#shown = live;
    const last = typeof this.#saved === 'string' ? saved : this.#saved;
    const still = new Still(last);
    this.#still = live ? null : still;
    this.#tellGone();
    this.#mount(mount, live ?? still, last, !live && !hasMore(last));
  }

  /** Not before it is known: the kernel may still be found, or may still have this mesh. */
  #tellGone(): void {
    if ((this.#panel?.sessionContext.isReady ?? true) && !this.#link?.isAsking) {
      this.#still?.tellGone();
    }
  }

  /** While the kernel has not told its meshes yet nothing flickers. */
  #isUndecided(connection: Connection | null): boolean {
    return connection ? connection.model.n < 0 : this.#link?.phase === 'opening';
  }

  #mount(mount: typeof mountMesh, connection: Connection, { mesh, ranks }: Saved, compact: boolean): void {
    const panel = this.#panel;
    this.#view = mount(this.node, connection, {
      mesh,
      ranks,
      compact,
      onJump: number => {
        if (panel) {
          void jumpToNumber(panel, connection, number);
        }
      },
      onLogs: (name, runs) => {
        if (this.#link) {
          this.outputs.showLogs(this.#link, name, runs);
        }
      }
    });
  }
}

/** The area that shows a renderer, told by its class: a page may have the module twice. */
function outputAreaOf(renderer: Widget): OutputArea | null {
  let found = renderer.parent;
  while (found && !found.hasClass('jp-OutputArea')) {
    found = found.parent;
  }
  return found as OutputArea | null;
}
