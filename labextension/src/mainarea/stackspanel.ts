/** Where ranks are now: their Python stacks, equal ones together. */

import { Widget } from '@lumino/widgets';

import { button, element, flame, runs, setText, takenText } from '../front.js';
import type { Link } from '../kernel/links.js';
import { ranksPhrase, statusLine } from '../ui/elements.js';

const TOLD_MS = 5_000;

interface Stacks {
  stacks: { ranks: string; text: string }[];
  silent: string;
  tree: Parameters<typeof flame>[0];
}

export class StacksPanel extends Widget {
  readonly #note = statusLine('log-count');
  #ranks = '';
  /** Who did not answer, and when the stacks were; null: none are shown. */
  #taken: { silent: string; at: Date } | null = null;
  readonly #clock = setInterval(() => { this.#tell(); }, TOLD_MS);
  readonly #body = element('div', 'lab-stacks');

  constructor(
    private readonly link: Link,
    readonly mesh: string
  ) {
    super();
    this.addClass('mnb-palette');
    this.addClass('mnb-log');
    const bar = element('div', 'log-bar');
    const again = button('again', 'Ask the ranks again', () => { void this.#ask(); });
    bar.append(again, this.#note);
    this.node.append(bar, this.#body);
  }

  override dispose(): void {
    clearInterval(this.#clock);
    super.dispose();
  }

  /** Ask these ranks where they are. */
  choose(ranks: string): void {
    this.#ranks = ranks;
    void this.#ask();
  }

  async #ask(): Promise<void> {
    const { connection, why } = this.link;
    if (!connection) {
      setText(this.#note, why);
      return;
    }
    this.#taken = null;
    setText(this.#note, 'Asking the ranks where they are…');
    try {
      const wish = { mesh: this.mesh, ranks: this.#ranks };
      this.#draw((await connection.ask('stacks', wish)) as Stacks);
    } catch (error) {
      setText(this.#note, error instanceof Error ? error.message : String(error));
    }
  }

  #draw({ stacks, silent, tree }: Stacks): void {
    this.#taken = { silent, at: new Date() };
    this.#tell();
    this.#body.replaceChildren(
      flame(tree),
      ...stacks.flatMap(({ ranks, text }) => [
        element('h4', 'lab-sub', ranksPhrase(runs(ranks), 0)),
        element('pre', 'lab-stack', text)
      ])
    );
  }

  #tell(): void {
    if (this.#taken) {
      const { silent, at } = this.#taken;
      const said = silent ? `no answer from ${ranksPhrase(runs(silent), 0)}, ` : '';
      setText(this.#note, said + takenText(at, Date.now()));
    }
  }
}
