/** The actors of a mesh: class, name, calls, failed, queue. */

import { element, type Mesh } from '../front.js';

const HEADS = ['Actor', 'Calls', 'Failed', 'Waiting'];

export class ActorTable {
  readonly node = element('details', 'lab-actors');
  readonly #head = element('summary', 'lab-sub', 'Actors');
  readonly #body = element('tbody', '');
  #shown: Mesh['actors'] | null = null;

  constructor() {
    const table = element('table', 'lab-table');
    const row = element('tr', '');
    for (const text of HEADS) {
      const cell = element('th', '', text);
      cell.scope = 'col';
      row.append(cell);
    }
    const head = element('thead', '');
    head.append(row);
    table.append(head, this.#body);
    this.node.append(this.#head, table);
  }

  update({ actors }: Pick<Mesh, 'actors'>): void {
    if (actors === this.#shown) {
      return;
    }
    this.#shown = actors;
    this.node.hidden = actors.length === 0;
    this.#head.textContent = `Actors (${actors.length})`;
    this.#body.replaceChildren(...actors.map(rowOf));
  }
}

function rowOf(actor: Mesh['actors'][number]): HTMLElement {
  const row = element('tr', '');
  const who = element('th', '');
  who.scope = 'row';
  who.title = `${actor.cls} "${actor.name}" on ${actor.size} ranks`;
  who.append(element('span', 'actor-name', actor.name), element('span', 'actor-class', actor.cls));
  if (actor.ended !== null) {
    row.classList.add('mnb-mod-ended');
    who.append(element('span', 'actor-ended', `ended: ${actor.ended}`));
  }
  const failed = element('td', actor.failed > 0 ? 'mnb-mod-failed' : '', String(actor.failed));
  row.append(who, element('td', '', String(actor.calls)), failed, element('td', '', String(actor.queue)));
  return row;
}
