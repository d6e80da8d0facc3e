/** One variable of all ranks: a row, and below it, once opened, what is in it. */

import { button, element, setText } from '../front.js';
import {
  classOf,
  differences,
  extentText,
  type Group,
  linesOf,
  memoryOf,
  rankToOpen,
  shapeText,
  shortText,
  sizeText,
  type Variable,
  who
} from './told.js';

const MARK = '≠';

/** What a row asks of its section. */
export interface Wishes {
  /** What is in a variable; throws a sentence. */
  ask: (name: string) => Promise<Variable>;
  /** Show a tensor of this rank. */
  open: (name: string, rank: number) => void;
}

export class VariableRow {
  readonly node = element('tr', 'var');
  readonly below = element('tr', 'var-below');
  readonly #button: HTMLButtonElement;
  readonly #mark = element('span', 'var-mark', MARK);
  readonly #what = element('td', 'var-what');
  readonly #memory = element('td', 'var-memory');
  readonly #body = element('td', '');
  #variable: Variable;

  constructor(
    variable: Variable,
    private readonly wishes: Wishes
  ) {
    this.#variable = variable;
    this.#button = button(variable.name, '', () => { this.#toggle(); });
    this.#button.classList.add('mnb-var-name');
    this.#mark.title = 'ranks differ';
    this.#mark.setAttribute('role', 'img');
    this.#mark.setAttribute('aria-label', 'ranks differ');
    const head = element('th', '');
    head.scope = 'row';
    head.append(this.#button, this.#mark);
    this.node.append(head, this.#what, this.#memory);
    this.node.addEventListener('click', event => {
      if (event.target !== this.#button && !getSelection()?.toString()) {
        this.#toggle();
      }
    });
    this.#body.colSpan = 3;
    this.below.append(this.#body);
    this.below.hidden = true;
    this.#tellOpen();
    this.#tell();
  }

  get isOpen(): boolean {
    return !this.below.hidden;
  }

  focus(): void {
    this.#button.focus();
  }

  get hasFocus(): boolean {
    return document.activeElement === this.#button;
  }

  /** What is in it is asked again where it is open. */
  update(variable: Variable): void {
    if (variable === this.#variable) {
      return;
    }
    this.#variable = variable;
    this.#tell();
    if (this.isOpen) {
      void this.#look();
    }
  }

  #tell(): void {
    const variable = this.#variable;
    this.#mark.hidden = !variable.differs;
    const [first] = variable.groups;
    const lines = differences(variable).map(line => element('div', 'var-other', line));
    this.#what.replaceChildren(shortText(first), ...lines);
    const bytes = memoryOf(variable);
    setText(this.#memory, bytes === null ? '' : sizeText(bytes));
    this.node.title = variable.groups.map(one => `${who(one.ranks)}: ${wholeText(one)}`).join('\n');
  }

  #toggle(): void {
    this.below.hidden = this.isOpen;
    this.#tellOpen();
    if (this.isOpen) {
      this.#draw(this.#variable, 'Asking the ranks…');
      void this.#look();
    }
  }

  #tellOpen(): void {
    this.#button.setAttribute('aria-expanded', String(this.isOpen));
  }

  async #look(): Promise<void> {
    try {
      const found = await this.wishes.ask(this.#variable.name);
      this.#draw(found, '');
    } catch (error) {
      this.#draw(this.#variable, error instanceof Error ? error.message : String(error));
    }
  }

  #draw(variable: Variable, note: string): void {
    const hadFocus = this.#body.contains(document.activeElement);
    const parts = variable.groups.flatMap(group => partOf(group, variable.groups.length > 1));
    const said = element('div', 'var-note', note);
    said.hidden = !note;
    this.#body.replaceChildren(...parts, said);
    const rank = rankToOpen(variable);
    if (rank !== null) {
      const title = 'Show its numbers, as a table or an image';
      const open = button('Open', title, () => { this.wishes.open(variable.name, rank); });
      open.setAttribute('aria-label', `Open ${variable.name}`);
      this.#body.append(open);
      if (hadFocus) {
        open.focus();
      }
    }
  }
}

/** What is alike on some ranks, in full. */
function partOf(group: Group, isOneOfSome: boolean): HTMLElement[] {
  const list = element('dl', 'var-facts');
  const facts: [string, string[]][] = [
    ['type', [group.type]],
    ['shape', [group.shape ? shapeText(group.shape) : '']],
    ['size', [extentText(group)]],
    ['dtype', [group.dtype ?? '']],
    ['device', linesOf(group.devices)],
    ['memory', [group.bytes === null ? '' : `${group.bytes.toLocaleString('en')} bytes`]],
    [group.bytes === null ? 'value' : 'values', linesOf(group.values)]
  ];
  for (const [name, lines] of facts.filter(([, lines]) => lines.some(Boolean))) {
    const told = element('dd', '');
    told.append(...lines.map(line => element('div', '', line)));
    list.append(element('dt', '', name), told);
  }
  return isOneOfSome ? [element('div', 'var-who', who(group.ranks)), list] : [list];
}

/** For a tooltip. */
function wholeText(group: Group): string {
  const devices = group.devices.map(one => one.is).join(', ');
  const memory = group.bytes === null ? '' : sizeText(group.bytes);
  return [classOf(group), shortText(group), devices, memory].filter(Boolean).join(', ');
}
