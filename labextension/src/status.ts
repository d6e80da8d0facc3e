/** The status bar's item: "8 ranks: 7 busy, 1 failed", with the mark of the worst. */

import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { countsText, element, isDead, type Mesh, setText } from './front.js';
import { type Current, followNews } from './kernel/current.js';
import { markNode } from './ui/elements.js';

/** The worst first. */
const CONCERNS = ['exited', 'unreachable', 'failed', 'silent', 'paused', 'starting', 'collective', 'busy'];

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

/** Of all meshes together. */
export function summaryOf(meshes: readonly Mesh[]): string {
  if (meshes.length === 0) {
    return 'no mesh';
  }
  if (meshes.length === 1) {
    return meshes[0].summary();
  }
  const counts: Record<string, number> = {};
  for (const mesh of meshes) {
    for (const [state, count] of Object.entries(mesh.counts())) {
      counts[state] = (counts[state] ?? 0) + count;
    }
  }
  const ranks = meshes.reduce((sum, mesh) => sum + mesh.size, 0);
  return `${ranks} ranks in ${meshes.length} meshes: ${countsText(counts)}`;
}

/** The state that most needs a look; "idle" if none does, "" without ranks. */
export function worstOf(meshes: readonly Mesh[]): string {
  const all = new Set(meshes.flatMap(mesh => Object.keys(mesh.counts())));
  return CONCERNS.find(state => all.has(state)) ?? (all.size ? 'idle' : '');
}
