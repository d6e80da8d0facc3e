/** The ranks of a mesh as a list: searched, filtered, thousands of them. Only the rows in sight exist. */

import {
  ageText,
  element,
  isDead,
  isWorking,
  markOf,
  type Mesh,
  type Model,
  runs,
  stateNames
} from '../front.js';
import { choiceField, markNode, named, statusLine, textField } from '../ui/elements.js';

const ROW_PX = 24;
const MORE = 6;

export class RankList {
  readonly #model: Model;
  readonly #name: string;
  readonly #chosen: (ranks: number[]) => void;
  readonly node = element('div', 'ranklist');
  readonly #search: HTMLInputElement;
  readonly #state = choiceField('Only ranks that are', [
    ['all', ''],
    ...stateNames().map((one): [string, string] => [markOf(one).word, one])
  ]);
  readonly #told = statusLine('ranklist-count');
  readonly #box = element('div', 'ranklist-box');
  readonly #space = element('div', 'ranklist-space');
  #found: number[] = [];
  #at = 0;
  #selected = new Set<number>();
  #drawn = '';

  /** `chosen` is told of the ranks that the user selects. */
  constructor(
    model: Model,
    name: string,
    chosen: (ranks: number[]) => void
  ) {
    this.#model = model;
    this.#name = name;
    this.#chosen = chosen;
    this.#search = textField(`Find ranks of ${name}`, 'busy, rank 3, failed, train…', 'search');
    this.#box.tabIndex = 0;
    this.#box.setAttribute('role', 'listbox');
    this.#box.setAttribute('aria-multiselectable', 'true');
    named(this.#box, `Ranks of ${name}`);
    this.#box.append(this.#space);
    const bar = element('div', 'ranklist-bar');
    bar.append(this.#search, this.#state);
    this.node.append(bar, this.#told, this.#box);
    this.#listen();
    this.update();
  }

  /** After the model has changed. */
  update(): void {
    const mesh = this.#model.meshes.get(this.#name);
    if (!mesh) {
      return;
    }
    this.#found = filterRanks(mesh, this.#search.value, this.#state.value);
    this.#at = Math.min(this.#at, Math.max(0, this.#found.length - 1));
    const some = this.#found.length < mesh.size;
    this.#told.textContent = some ? `${this.#found.length} of ${mesh.size} ranks` : '';
    this.#space.style.height = `${this.#found.length * ROW_PX}px`;
    this.#drawn = '';
    this.#draw();
  }

  /** Show which ranks are selected elsewhere. */
  select(ranks: Iterable<number>): void {
    this.#selected = new Set(ranks);
    this.#drawn = '';
    this.#draw();
  }

  #listen(): void {
    this.#search.addEventListener('input', () => { this.update(); });
    this.#state.addEventListener('change', () => { this.update(); });
    this.#box.addEventListener('scroll', () => { this.#draw(); }, { passive: true });
    this.#box.addEventListener('click', event => { this.#onClick(event); });
    this.#box.addEventListener('keydown', event => { this.#onKey(event); });
  }

  /** The rows in sight. */
  #draw(): void {
    const mesh = this.#model.meshes.get(this.#name);
    if (!mesh) {
      return;
    }
    const first = Math.max(0, Math.floor(this.#box.scrollTop / ROW_PX) - MORE);
    const count = Math.ceil((this.#box.clientHeight || 10 * ROW_PX) / ROW_PX) + 2 * MORE;
    const last = Math.min(this.#found.length, first + count);
    const drawn = `${first}-${last}`;
    if (drawn !== this.#drawn) {
      this.#drawn = drawn;
      const rows = this.#found.slice(first, last);
      this.#space.replaceChildren(...rows.map((rank, i) => this.#row(mesh, rank, first + i)));
    }
    if (this.#at >= first && this.#at < last) {
      this.#box.setAttribute('aria-activedescendant', this.#idOf(this.#found[this.#at]));
    } else {
      this.#box.removeAttribute('aria-activedescendant'); // it is not drawn
    }
  }

  #row(mesh: Mesh, rank: number, index: number): HTMLElement {
    const state = mesh.state(rank);
    const mark = markOf(state);
    const row = element('div', 'rankrow');
    row.id = this.#idOf(rank);
    row.style.top = `${index * ROW_PX}px`;
    row.dataset.rank = String(rank);
    row.setAttribute('role', 'option');
    row.setAttribute('aria-selected', String(this.#selected.has(rank)));
    row.setAttribute('aria-posinset', String(index + 1));
    row.setAttribute('aria-setsize', String(this.#found.length));
    row.classList.toggle('mnb-mod-active', index === this.#at);
    const what = isWorking(state) ? mesh.what(rank) : mesh.detail(rank) || mesh.headline(rank);
    row.title = [`rank ${rank}`, mark.word, what].filter(Boolean).join(': ');
    row.append(
      markNode(state),
      element('span', 'rankrow-rank', String(rank)),
      element('span', 'rankrow-what', what || mark.word),
      element('span', 'rankrow-age', this.#age(mesh, rank))
    );
    return row;
  }

  #age(mesh: Mesh, rank: number): string {
    const since = mesh.since(rank);
    return since > 0 && mesh.state(rank) !== 'idle' ? ageText(this.#model.clock - since) : '';
  }

  #idOf(rank: number): string {
    return `mnb-rankrow-${this.#name}-${rank}`;
  }

  #onClick(event: MouseEvent): void {
    const row = (event.target as Element).closest<HTMLElement>('.mnb-rankrow');
    if (row) {
      const index = this.#found.indexOf(Number(row.dataset.rank));
      this.#choose(index, event.shiftKey, event.ctrlKey || event.metaKey);
    }
  }

  #onKey(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this.#box.clientHeight / ROW_PX));
    const last = this.#found.length - 1;
    const at = this.#at;
    const to: Record<string, number> = {
      ArrowDown: at + 1,
      ArrowUp: at - 1,
      PageDown: at + page,
      PageUp: at - page,
      Home: 0,
      End: last
    };
    if (event.key in to) {
      this.#move(Math.min(last, Math.max(0, to[event.key])));
    } else if (event.key === 'Enter' || event.key === ' ') {
      this.#choose(at, event.shiftKey, event.ctrlKey || event.metaKey);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  #move(index: number): void {
    this.#at = index;
    const top = index * ROW_PX;
    const { scrollTop, clientHeight } = this.#box;
    if (top < scrollTop) {
      this.#box.scrollTop = top;
    } else if (top + ROW_PX > scrollTop + clientHeight) {
      this.#box.scrollTop = top + ROW_PX - clientHeight;
    }
    this.#drawn = '';
    this.#draw();
  }

  /** As in every list: a click selects one, with Shift as far as it, with Ctrl one more. */
  #choose(index: number, isRange: boolean, isMore: boolean): void {
    const rank = this.#found.at(index);
    if (rank === undefined || index < 0) {
      return;
    }
    const range = this.#found.slice(Math.min(index, this.#at), Math.max(index, this.#at) + 1);
    if (isRange) {
      this.#selected = new Set(range);
    } else if (isMore) {
      this.#selected = new Set(this.#selected);
      if (!this.#selected.delete(rank)) {
        this.#selected.add(rank);
      }
    } else {
      this.#selected = this.#selected.size === 1 && this.#selected.has(rank) ? new Set() : new Set([rank]);
    }
    this.#at = isRange ? this.#at : index;
    this.#chosen([...this.#selected]);
    this.#drawn = '';
    this.#draw();
  }
}

/** What a filter looks at. */
export type Ranks = Pick<Mesh, 'size' | 'state' | 'what' | 'detail' | 'labels' | 'coords'>;

/** The ranks, in order, of which every word of the text is true; all states if `state` is "". */
export function filterRanks(mesh: Ranks, text: string, state = ''): number[] {
  const tests = wordsOf(text).map(word => testOf(mesh, word));
  const found: number[] = [];
  for (let rank = 0; rank < mesh.size; rank++) {
    if ((!state || mesh.state(rank) === state) && tests.every(test => test(rank))) {
      found.push(rank);
    }
  }
  return found;
}

function wordsOf(text: string): string[] {
  return text
    .toLowerCase()
    .replace(/\branks?\s+(?=\d)/g, '')
    .replace(/,\s+(?=\d)/g, ',')
    .split(/\s+/)
    .filter(Boolean);
}

function testOf(mesh: Ranks, word: string): (rank: number) => boolean {
  if (/^\d+(-\d+)?(,\d+(-\d+)?)*,?$/.test(word)) {
    const wanted = new Set(runs(word));
    return rank => wanted.has(rank);
  }
  const [, label, value] = /^(\w+)=(\d+)$/.exec(word) ?? [];
  const axis = mesh.labels.findIndex(one => one.toLowerCase() === label);
  if (label && axis >= 0) {
    return rank => mesh.coords(rank)[axis] === Number(value);
  }
  return rank => textOf(mesh, rank).includes(word);
}

/** All that can be searched of a rank. */
function textOf(mesh: Ranks, rank: number): string {
  const state = mesh.state(rank);
  const lost = isDead(state) ? 'failed' : '';
  const all = [state, markOf(state).word, lost, mesh.what(rank), mesh.detail(rank)];
  return all.join(' ').toLowerCase();
}
