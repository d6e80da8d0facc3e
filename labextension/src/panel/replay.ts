/**
 * Ranks that were started again, without what cells have defined: a row with the button that runs those cells there.
 *
 * Rule of the file: the kernel says what is lacking. It is asked when a rank has another process, and after cells.
 */

import { button, type Connection, element, type Mesh, setText } from '../front.js';

/** As the kernel tells it: `line` runs these cells on those ranks; all are "" where nothing is lacking. */
export interface Lacking {
  line: string;
  cells: string;
  ranks: string;
}

export class ReplayRow {
  readonly node = element('div', 'lab-row');
  readonly #said = element('span', 'lab-row-name');
  readonly #button = button('', '', () => void this.#replay());
  #line = '';
  #pids: Mesh['pids'] | null = null;

  /** `run` settles when a cell with this line has run. */
  constructor(
    private readonly connection: Connection,
    private readonly mesh: string,
    private readonly run: (line: string) => Promise<void>
  ) {
    this.node.classList.add('mnb-lab-replay');
    this.node.hidden = true;
    this.node.setAttribute('role', 'group');
    this.node.setAttribute('aria-label', 'Ranks that were started again');
    this.#said.setAttribute('role', 'status');
    this.node.append(this.#said, this.#button);
  }

  /** After the model has changed. */
  update({ pids }: Mesh): void {
    if (pids !== this.#pids) {
      this.#pids = pids;
      void this.ask();
    }
  }

  async ask(): Promise<void> {
    const asked = this.connection.ask('replay', { mesh: this.mesh });
    const lacking = (await asked.catch(() => null)) as Lacking | null;
    if (lacking) {
      this.#show(lacking);
    }
  }

  /** What has not changed is not drawn again: somebody may be at the button. */
  #show(lacking: Lacking): void {
    this.#line = lacking.line;
    this.node.hidden = !lacking.line;
    if (lacking.line) {
      const [said, label] = wordsOf(lacking);
      setText(this.#said, said);
      setText(this.#button, label);
      this.#button.title = lacking.line;
    }
  }

  async #replay(): Promise<void> {
    this.#button.disabled = true; // until it is told what is lacking still
    await this.run(this.#line).catch(() => undefined); // the cell shows its error
    await this.ask();
    this.#button.disabled = false;
  }
}

/** What stands in the row, and on its button. */
export function wordsOf({ cells, ranks }: Lacking): [string, string] {
  const [who, has] = /\D/.test(ranks) ? ['Ranks', 'have'] : ['Rank', 'has'];
  const some = /\D/.test(cells) ? 'cells' : 'cell';
  const defined = `${some} ${cells} ${some === 'cell' ? 'has' : 'have'} defined`;
  return [`${who} ${ranks} ${has} nothing of what ${defined}`, `Run ${some} ${cells} there`];
}
