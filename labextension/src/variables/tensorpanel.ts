/**
 * A tensor of a rank in the main area: some of its numbers as a table, or all of a plane as a picture.
 * Rule of the file: it has what it shows, and no more of the tensor.
 */

import { Widget } from '@lumino/widgets';

import { button, element, setText } from '../front.js';
import type { Link } from '../kernel/links.js';
import { named, statusLine } from '../ui/elements.js';
import { drawPicture, eachText, type Picture, scaleOf } from './picture.js';
import {
  COLUMNS,
  headText,
  isOdd,
  type LocalTensor,
  type Place,
  planeOf,
  ROWS,
  turned,
  typed,
  type Window,
  windowText
} from './place.js';

export class TensorPanel extends Widget {
  readonly #place: Place = { rank: 0, indices: [], row: 0, column: 0 };
  readonly #rank = numberField('rank', text => { this.#place.rank = typed(text, Infinity); this.#ask(); });
  readonly #dims = element('span', 'tensor-fields');
  readonly #row: Pager;
  readonly #column: Pager;
  readonly #asPicture = button('as image', 'Show the last two dims as an image', () => { this.#toggle(); });
  readonly #note = statusLine('log-count');
  readonly #head = element('div', 'tensor-head');
  readonly #body = element('div', 'tensor-body');
  #fields: NumberField[] = [];
  #shape: readonly number[] | null = null;
  #isPicture = false;
  /** Counts questions, so that an answer that is late is known to be. */
  #turn = 0;

  constructor(
    private readonly link: Link,
    private readonly mesh: string,
    private readonly variable: string
  ) {
    super();
    this.addClass('mnb-palette');
    this.addClass('mnb-log');
    this.addClass('mnb-tensor');
    this.#row = new Pager('row', ROWS, row => { this.#place.row = row; this.#ask(); });
    this.#column = new Pager('column', COLUMNS, column => { this.#place.column = column; this.#ask(); });
    this.#asPicture.setAttribute('aria-pressed', 'false');
    const bar = named(element('div', 'log-bar'), `What is shown of ${variable}`);
    bar.setAttribute('role', 'toolbar');
    const again = button('again', 'Ask the rank again', () => { this.#ask(); });
    bar.append(this.#rank.node, this.#dims, this.#row.node, this.#column.node, this.#asPicture, again, this.#note);
    this.#body.tabIndex = 0;
    named(this.#body, variable).setAttribute('role', 'region');
    this.node.append(bar, this.#head, this.#body);
  }

  /** Show what this rank has. */
  choose(rank: number): void {
    this.#place.rank = rank;
    this.#ask();
  }

  protected override onActivateRequest(): void {
    this.#body.focus();
  }

  #toggle(): void {
    this.#isPicture = !this.#isPicture;
    this.#asPicture.setAttribute('aria-pressed', String(this.#isPicture));
    this.#ask();
  }

  #ask(): void {
    void this.#show(++this.#turn);
  }

  async #show(turn: number): Promise<void> {
    const { connection, why } = this.link;
    const { rank, indices, row, column } = this.#place;
    this.#rank.set(rank);
    if (!connection) {
      this.#refuse(why);
      return;
    }
    setText(this.#note, 'Asking the rank…');
    const wish = { mesh: this.mesh, rank, name: this.variable, indices };
    const asked = this.#isPicture ? connection.ask('picture', wish) : connection.ask('window', { ...wish, row, column });
    try {
      const told = (await asked) as Picture | Window;
      if (turn === this.#turn && !this.isDisposed) {
        this.#draw(told);
      }
    } catch (error) {
      if (turn === this.#turn) {
        this.#refuse(error instanceof Error ? error.message : String(error));
      }
    }
  }

  /** What was shown before is of another place: it goes. */
  #refuse(why: string): void {
    setText(this.#note, why);
    setText(this.#head, '');
    this.#body.replaceChildren();
  }

  #draw(told: Picture | Window): void {
    this.#place.indices = told.indices;
    const at = new Date().toTimeString().slice(0, 8);
    setText(this.#head, `${this.variable} on rank ${this.#place.rank}: ${headText(told)}, at ${at}`);
    this.#drawDims(told);
    const isPicture = 'dots' in told;
    this.#row.node.hidden = this.#column.node.hidden = isPicture;
    if (isPicture) {
      setText(this.#note, eachText(told));
      const scale = scaleOf(told, this.#body.clientWidth, this.#body.clientHeight);
      this.#body.replaceChildren(drawPicture(this.variable, told, scale));
      return;
    }
    const { rows, columns } = planeOf(told.shape);
    this.#place.row = told.row;
    this.#place.column = told.column;
    this.#row.tell(told.row, rows);
    this.#column.tell(told.column, columns);
    setText(this.#note, windowText(told));
    this.#body.replaceChildren(tableOf(this.variable, told));
    this.#body.scrollTo(0, 0);
  }

  /** A field for each dim before the last two; made anew where there are others. */
  #drawDims({ shape }: LocalTensor): void {
    const { indices } = this.#place;
    if (this.#shape?.join() !== shape.join()) {
      this.#shape = shape;
      const fields = indices.map((_, dim) =>
        numberField(`dim ${dim}`, text => {
          this.#place.indices = this.#place.indices.map((at, i) => (i === dim ? typed(text, shape[dim]) : at));
          this.#ask();
        }, shape[dim] - 1)
      );
      this.#fields = fields;
      this.#dims.replaceChildren(...fields.map(({ node }) => node));
    }
    this.#fields.forEach((field, dim) => { field.set(indices[dim]); });
  }
}

interface NumberField {
  node: HTMLElement;
  set: (value: number) => void;
}

/** A field with its name before it, and behind it the last number that there is. */
function numberField(label: string, chosen: (text: string) => void, last?: number): NumberField {
  const node = element('label', 'tensor-field', label);
  const input = element('input', 'lab-input');
  input.type = 'number';
  input.min = '0';
  if (last !== undefined) {
    input.max = String(last);
  }
  input.addEventListener('change', () => { chosen(input.value); });
  node.append(input);
  if (last !== undefined) {
    node.append(element('span', 'tensor-last', `of 0-${last}`));
  }
  const set = (value: number) => { input.value = String(value); };
  return { node, set };
}

/** The first row or column that is shown, with the pages before and behind it. */
class Pager {
  readonly node = element('span', 'tensor-field');
  readonly #field: NumberField;
  readonly #before: HTMLButtonElement;
  readonly #behind: HTMLButtonElement;
  #at = 0;
  #size = 0;

  constructor(
    word: string,
    private readonly page: number,
    private readonly chosen: (at: number) => void
  ) {
    this.#field = numberField(`${word}s from`, text => { chosen(typed(text, this.#size)); });
    this.#before = named(button('‹', `The ${word}s before`, () => { this.#turn(-1); }), `previous ${word}s`);
    this.#behind = named(button('›', `The ${word}s behind`, () => { this.#turn(1); }), `next ${word}s`);
    this.node.append(this.#before, this.#field.node, this.#behind);
  }

  /** Nothing to choose where one page has all. */
  tell(at: number, size: number): void {
    this.#at = at;
    this.#size = size;
    this.#field.set(at);
    this.node.hidden = size <= this.page && at === 0;
    this.#before.disabled = turned(at, -1, this.page, size) === null;
    this.#behind.disabled = turned(at, 1, this.page, size) === null;
  }

  #turn(step: 1 | -1): void {
    const at = turned(this.#at, step, this.page, this.#size);
    if (at !== null) {
      this.chosen(at);
    }
  }
}

function tableOf(name: string, told: Window): HTMLElement {
  const table = named(element('table', 'tensor-table'), `${name}, ${windowText(told)}`);
  const heads = element('tr', '');
  heads.append(element('td', ''), ...(told.numbers.at(0) ?? []).map((_, i) => headCell('col', told.column + i)));
  const head = element('thead', '');
  head.append(heads);
  const body = element('tbody', '');
  body.append(
    ...told.numbers.map((row, i) => {
      const line = element('tr', '');
      const cells = row.map(text => element('td', isOdd(text) ? 'tensor-odd' : '', text));
      line.append(headCell('row', told.row + i), ...cells);
      return line;
    })
  );
  table.append(head, body);
  return table;
}

function headCell(scope: 'row' | 'col', number: number): HTMLElement {
  const cell = element('th', '', String(number));
  cell.scope = scope;
  return cell;
}
