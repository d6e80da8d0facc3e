/** Meshes that go on without their kernel: a row each, with the button that brings them back. */

import { button, element } from '../front.js';
import { timeText } from '../ui/times.js';
import { quoted } from './upline.js';

/** As the kernel tells them: those of a row come back together. */
export interface KeptMeshes {
  names: string[];
  ranks: number;
  /** The process that drives them, or null. */
  driven_by: number | null;
  /** How long they go on without a kernel, seconds. */
  for_s: number;
}

export class KeptRows {
  readonly node = element('div', 'lab-kept');
  #all: readonly KeptMeshes[] = [];

  /** `run` settles when a cell with this line has run. */
  constructor(private readonly run: (line: string) => Promise<void>) {}

  /** Whether there are some that nobody drives. */
  get canAttach(): boolean {
    return this.#all.some(({ driven_by }) => driven_by === null);
  }

  /** What has not changed is not drawn again: somebody may be at a button. */
  show(all: readonly KeptMeshes[]): void {
    if (JSON.stringify(all) !== JSON.stringify(this.#all)) {
      this.#all = all;
      this.node.replaceChildren(...all.map(one => this.#row(one)));
    }
  }

  #row(kept: KeptMeshes): HTMLElement {
    const names = kept.names.join(', ');
    const node = element('div', 'lab-row');
    node.setAttribute('role', 'group');
    node.setAttribute('aria-label', `Kept ${names}`);
    const said = element('div', 'lab-row-said', keptText(kept));
    node.append(element('strong', 'lab-row-name', names), this.#button(kept), said);
    return node;
  }

  #button({ names, driven_by }: KeptMeshes): HTMLButtonElement {
    const [text, title, option] =
      driven_by === null
        ? ['Attach', 'bring it back into this notebook, with all that its ranks hold', '']
        : ['View', 'look at its ranks, which the other process goes on to drive', ' --view'];
    const node = button(text, title, () => {
      node.disabled = true; // until it is told whether it is still there
      void this.run(`%mesh attach ${quoted(names[0] ?? '')}${option}`).finally(() => { node.disabled = false; });
    });
    return node;
  }
}

/** "4 ranks, kept for 8 h" */
export function keptText({ ranks, driven_by, for_s }: KeptMeshes): string {
  const count = ranks === 1 ? '1 rank' : `${ranks} ranks`;
  const how = driven_by === null ? `kept for ${timeText(for_s)}` : `driven by process ${driven_by}`;
  return `${count}, ${how}`;
}
