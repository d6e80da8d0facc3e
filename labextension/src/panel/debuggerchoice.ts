/** Which ranks the visual debugger is for: a choice in the panel, as the kernel has it. */

import { act } from '../actions.js';
import { type Connection, runs, runsText } from '../front.js';
import { choiceField, ranksPhrase } from '../ui/elements.js';

interface Chosen {
  whom: 'ranks' | 'controller' | 'off';
  mesh: string;
  ranks: string;
}

export class DebuggerChoice {
  readonly node = choiceField('Visual debugger', []);
  #selected: readonly number[] = [];
  #chosen: Chosen | null = null;

  /** Hidden where the kernel has no such debugger. */
  constructor(
    private readonly connection: Connection,
    private readonly mesh: string
  ) {
    this.node.title = 'whom the bug button of the notebook debugs';
    this.node.addEventListener('change', () => { void this.#choose(); });
    this.node.addEventListener('focus', () => { void this.ask(); });
    this.#draw();
    void this.ask();
  }

  /** Offer the ranks that are selected. */
  select(ranks: readonly number[]): void {
    this.#selected = ranks;
    this.#draw();
  }

  async ask(): Promise<void> {
    this.#chosen = (await this.connection.ask('debugger').catch(() => null)) as Chosen | null;
    this.#draw();
  }

  async #choose(): Promise<void> {
    const { value } = this.node;
    const isFixed = value === 'controller' || value === 'off';
    const ranks = value === 'all' ? null : value;
    const args = isFixed ? { whom: value } : { whom: 'ranks', mesh: this.mesh, ranks };
    await act(this.connection, 'debugger', args);
    await this.ask();
  }

  #draw(): void {
    const chosen = this.#chosen;
    this.node.hidden = !chosen;
    const size = this.connection.model.meshes.get(this.mesh)?.size ?? 0;
    const isHere = chosen?.whom === 'ranks' && chosen.mesh === this.mesh;
    const isAll = isHere && runs(chosen.ranks).length === size;
    const now = isAll ? 'all' : isHere ? chosen.ranks : (chosen?.whom ?? '');
    const selected = runsText(this.#selected);
    const some = new Map([
      ['controller', 'controller'],
      ['all', 'all ranks'],
      ['off', 'off']
    ]);
    if (chosen?.whom === 'ranks' && !isAll) {
      some.set(now, `${isHere ? '' : `${chosen.mesh} `}${ranksPhrase(runs(chosen.ranks), 0)}`);
    }
    if (selected && this.#selected.length < size && selected !== now) {
      some.set(selected, `${ranksPhrase(this.#selected, 0)} (selected)`);
    }
    this.node.replaceChildren(...[...some].map(([value, text]) => new Option(`debugger: ${text}`, value)));
    this.node.value = now;
  }
}
