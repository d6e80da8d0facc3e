/**
 * The variables of a mesh in the side panel.
 * Rule of the file: ranks are asked while somebody sees the answer and it may have changed: when it is opened, when
 * a cell has ended or the ranks come to rest, and when a button says so. Nothing is asked by the clock.
 */

import { button, type Connection, element, isWorking, type Mesh, setText } from '../front.js';
import { named, statusLine, textField } from '../ui/elements.js';
import { chosen, noteText, type Order, type Told, type Variable, withLast } from './told.js';
import { VariableRow } from './variablerow.js';

export class VariablesSection {
  readonly node = element('details', 'lab-vars');
  readonly #filter: HTMLInputElement;
  readonly #again = button('↻', 'Ask the ranks again', () => { this.refresh(); });
  readonly #note = statusLine('vars-note');
  readonly #table = element('table', 'lab-table');
  readonly #body = element('tbody', '');
  readonly #heads: Record<Order, HTMLTableCellElement>;
  readonly #rows = new Map<string, VariableRow>();
  #told: Told | null = null;
  #at = new Date();
  #order: Order = 'name';
  #isDue = true;
  #isAsking = false;
  #last: Promise<unknown> = Promise.resolve();
  #wasWorking = false;

  constructor(
    private readonly connection: Connection,
    private readonly mesh: string,
    private readonly open: (name: string, rank: number) => void
  ) {
    this.#filter = textField(`Find variables of ${mesh}`, 'model, float32, differs…', 'search');
    this.#filter.addEventListener('input', () => { this.#draw(); });
    named(this.#again, 'Ask the ranks again');
    const bar = element('div', 'vars-bar');
    bar.append(this.#filter, this.#again);
    this.#heads = { name: this.#head('name'), memory: this.#head('memory') };
    const heads = element('tr', '');
    const what = element('th', 'var-what', 'what');
    what.scope = 'col';
    heads.append(this.#heads.name, what, this.#heads.memory);
    const head = element('thead', '');
    head.append(heads);
    named(this.#table, `Variables of ${mesh}`).append(head, this.#body);
    this.#table.hidden = true;
    this.node.append(element('summary', 'lab-sub', 'Variables'), bar, this.#note, this.#table);
    this.node.addEventListener('toggle', () => { this.refresh(); });
  }

  /** After the model has changed, or when it comes into sight. */
  update(mesh: Mesh): void {
    if (!this.node.open) {
      return; // it is asked when it is opened
    }
    const isNowWorking = Object.keys(mesh.counts()).some(isWorking);
    this.#isDue ||= this.#wasWorking && !isNowWorking;
    this.#wasWorking = isNowWorking;
    void this.#askIfDue();
  }

  /** What ranks have may have changed. */
  refresh(): void {
    this.#isDue = true;
    void this.#askIfDue();
  }

  get #isSeen(): boolean {
    return this.node.open && this.node.checkVisibility();
  }

  /** One question at a time; what happens meanwhile has it asked once more. */
  async #askIfDue(): Promise<void> {
    if (this.#isAsking) {
      return;
    }
    this.#isAsking = true;
    while (this.#isDue && this.#isSeen) {
      this.#isDue = false;
      await this.#ask();
    }
    this.#isAsking = false;
  }

  /** Where nobody answers, what was told last stays. */
  async #ask(): Promise<void> {
    if (!this.#told) {
      setText(this.#note, 'Asking the ranks…');
    }
    try {
      this.#told = withLast(await this.#inTurn(null), this.#told);
      this.#at = new Date();
      this.#draw();
    } catch (error) {
      setText(this.#note, error instanceof Error ? error.message : String(error));
    }
  }

  /** After the question before it: of several at once a rank answers the newest only. */
  async #inTurn(name: string | null): Promise<Told> {
    const asked = this.#last.then(() => this.connection.ask('variables', { mesh: this.mesh, name }));
    this.#last = asked.catch(() => undefined);
    return (await asked) as Told;
  }

  #draw(): void {
    if (!this.#told) {
      return;
    }
    const shown = chosen(this.#told.variables, this.#filter.value, this.#order);
    setText(this.#note, noteText(this.#told, shown.length, this.#at));
    this.#table.hidden = this.#told.variables.length === 0;
    this.#forget(this.#told.variables);
    const rows = shown.map(one => this.#rowOf(one));
    const nodes = rows.flatMap(row => [row.node, row.below]);
    const isSame = nodes.length === this.#body.children.length && nodes.every((one, i) => one === this.#body.children[i]);
    if (!isSame) {
      const focused = rows.find(row => row.hasFocus);
      this.#body.replaceChildren(...nodes);
      focused?.focus();
    }
  }

  #forget(variables: readonly Variable[]): void {
    const names = new Set(variables.map(({ name }) => name));
    for (const name of [...this.#rows.keys()].filter(name => !names.has(name))) {
      this.#rows.delete(name);
    }
  }

  #rowOf(variable: Variable): VariableRow {
    const row = this.#rows.get(variable.name) ?? new VariableRow(variable, {
      ask: async name => {
        const { variables } = await this.#inTurn(name);
        return variables[0];
      },
      open: this.open
    });
    this.#rows.set(variable.name, row);
    row.update(variable);
    return row;
  }

  /** A heading that sorts. */
  #head(order: Order): HTMLTableCellElement {
    const cell = element('th', '');
    cell.scope = 'col';
    const title = order === 'name' ? 'Sort by name' : 'Sort by memory, the largest first';
    const sort = button(order, title, () => {
      this.#order = order;
      this.#tellOrder();
      this.#draw();
    });
    sort.classList.add('mnb-vars-sort');
    cell.append(sort);
    cell.setAttribute('aria-sort', order === this.#order ? 'ascending' : 'none');
    return cell;
  }

  #tellOrder(): void {
    for (const [order, cell] of Object.entries(this.#heads)) {
      const sorted = order === 'name' ? 'ascending' : 'descending';
      cell.setAttribute('aria-sort', order === this.#order ? sorted : 'none');
    }
  }
}
