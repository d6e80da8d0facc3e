/** The status bar's item: "8 ranks: 7 busy, 1 failed", with the mark of the worst. */

import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { element, isDead, type Mesh, setText } from './front.js';
import { type Current, followNews } from './kernel/current.js';
import { markNode } from './ui/elements.js';
import { summaryOf, worstOf } from './ui/summary.js';

export class StatusItem extends Widget {
  readonly activeChanged = new Signal<this, void>(this);
  isActive = false;
  isWanted = true;
  readonly #button = element('button', 'lab-status mnb-palette');
  readonly #text = element('span', '');
  #mark = '';

  constructor(
    private readonly current: Current,
    open: () => void
  ) {
    super();
    this.#button.type = 'button';
    this.#button.title = 'Show the mesh';
    this.#button.addEventListener('click', open);
    this.#button.append(this.#text);
    this.node.append(this.#button);
    followNews(current, () => { this.refresh(); });
  }

  refresh(): void {
    const { connection } = this.current;
    const isActive = this.isWanted && connection !== null && connection.model.n >= 0;
    if (isActive) {
      this.#tell(this.current.meshes, connection.state === 'lost');
    }
    if (isActive !== this.isActive) {
      this.isActive = isActive;
      this.activeChanged.emit();
    }
  }

  #tell(meshes: Mesh[], isLost: boolean): void {
    const worst = worstOf(meshes);
    const text = isLost ? 'mesh: no news' : summaryOf(meshes);
    setText(this.#text, text);
    this.#button.setAttribute('aria-label', `Mesh: ${text}. Show the mesh`);
    this.#button.classList.toggle('mnb-mod-bad', !isLost && (isDead(worst) || worst === 'failed'));
    if (worst !== this.#mark) {
      this.#mark = worst;
      this.#button.replaceChildren(...(worst ? [markNode(worst)] : []), this.#text);
    }
  }
}
