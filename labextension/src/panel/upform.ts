/** The form that brings up a mesh: it writes a line of `%mesh up`, which the kernel reads as a cell's. */

import { button, copyText, element, setText } from '../front.js';
import { choiceField, statusLine, textField } from '../ui/elements.js';
import { type Choice, hasSizes, lineOf, sizesOf, type Where } from './upline.js';

const HERE: Where = { name: '', title: 'this machine', missing: '', options: [], required: [], places: false };
const DEVICES = ['auto', 'cpu', 'cuda'].map((one): [string, string] => [one, one]);
const FIRST = ['partition', 'time']; // shown at once, beside what an engine requires

/** How the options of engines are called, and an example of each. */
const OPTIONS: Record<string, [label: string, example: string]> = {
  time: ['Time', '4:00:00'],
  partition: ['Partition', 'h100'],
  account: ['Account', ''],
  qos: ['QOS', ''],
  python: ['Python', 'python3'],
  namespace: ['Namespace', 'ml'],
  image: ['Image', 'registry/image:tag'],
  address: ['Address', 'HOST:PORT'],
  spares: ['Spares', '1'],
  'min-hosts': ['At least', '3']
};

export class UpForm {
  readonly node = element('form', 'upform');
  readonly #where = choiceField('Where', []);
  readonly #places = textField('Names of hosts', 'node1,node2');
  readonly #hosts = textField('Hosts', '2');
  readonly #sizes = textField('Sizes', 'gpus=4');
  readonly #name = textField('Name', 'as you like');
  readonly #device = choiceField('Device', DEVICES);
  readonly #options = new Map<string, HTMLInputElement>();
  readonly #first = element('div', 'upform-options');
  readonly #rest = element('div', 'upform-options');
  readonly #more = element('details', 'upform-more');
  readonly #line = element('code', 'upform-line');
  readonly #told = statusLine('upform-told');
  readonly #button = element('button', 'button mnb-mod-primary');
  readonly #rows = new Map<HTMLElement, HTMLElement>();
  #choices: readonly Where[] = [HERE];
  #wanted = ''; // what was chosen last, also while a new connection has not told its engines
  #hasOthers = false;
  #isBusy = false;

  /** `up` settles when the mesh is up or its hosts are asked for, with what went wrong, or "". */
  constructor(private readonly up: (line: string) => Promise<string>) {
    this.#sizes.value = 'gpus=4';
    this.#hosts.value = '2';
    this.#button.type = 'submit';
    this.#more.append(element('summary', 'lab-sub', 'More options'), this.#rest);
    const copy = button('copy', 'copy this line', () => { void copyText(this.#line.textContent); });
    const line = element('div', 'upform-lines');
    line.append(this.#line, copy);
    this.node.append(
      this.#row('Where', this.#where),
      this.#row('Hosts', this.#places),
      this.#row('Hosts', this.#hosts),
      this.#row('Size', this.#sizes),
      this.#first,
      this.#row('Device', this.#device),
      this.#row('Name', this.#name),
      this.#more,
      line,
      this.#told,
      this.#button
    );
    this.node.addEventListener('input', () => { this.#update(); });
    this.#where.addEventListener('change', () => {
      this.#wanted = this.#where.value;
      this.#choose();
    });
    this.node.addEventListener('submit', event => {
      event.preventDefault();
      void this.#submit();
    });
    this.offer([HERE]);
  }

  focus(): void {
    this.#sizes.focus();
    this.#sizes.select();
  }

  /** Where ranks may be, this machine aside. */
  offer(choices: readonly Where[]): void {
    this.#choices = [HERE, ...choices.filter(one => one !== HERE)];
    this.#where.replaceChildren(
      ...this.#choices.map(({ name, title, missing }) => {
        const option = new Option(missing ? `${title} (${missing})` : title, name);
        option.disabled = missing !== '';
        return option;
      })
    );
    const isThere = this.#choices.some(({ name }) => name === this.#wanted);
    this.#where.value = isThere ? this.#wanted : '';
    this.#choose();
  }

  /** Whether other meshes are up: then this one comes beside them. */
  tellOthers(hasOthers: boolean): void {
    if (this.#hasOthers !== hasOthers) {
      this.#hasOthers = hasOthers;
      this.#update();
    }
  }

  get #chosen(): Where {
    return this.#choices.find(({ name }) => name === this.#where.value) ?? HERE;
  }

  get #choice(): Choice {
    const where = this.#chosen;
    const options = where.options.map((name): [string, string] => [
      name,
      this.#options.get(name)?.value.trim() ?? ''
    ]);
    return {
      where,
      hosts: (where.places ? this.#places : this.#hosts).value.trim(),
      sizes: this.#sizes.value,
      device: this.#device.value,
      name: this.#name.value.trim(),
      options,
      isBeside: this.#hasOthers
    };
  }

  /** Show the fields of what was chosen. */
  #choose(): void {
    const where = this.#chosen;
    this.#show(this.#places, where.places);
    this.#show(this.#hosts, where.name !== '' && !where.places && !where.words);
    const isFirst = (name: string) => where.required.includes(name) || FIRST.includes(name);
    this.#first.replaceChildren(...where.options.filter(isFirst).map(name => this.#option(name)));
    const rest = where.options.filter(name => !isFirst(name));
    this.#rest.replaceChildren(...rest.map(name => this.#option(name)));
    this.#more.hidden = rest.length === 0;
    this.#sizes.placeholder = where.words ? 'as the profile says' : 'gpus=4';
    if (where.words && hasSizes(where.words)) {
      this.#sizes.value = '';
    } else if (!this.#sizes.value) {
      this.#sizes.value = 'gpus=4';
    }
    this.#update();
  }

  #option(name: string): HTMLElement {
    const [label, example] = OPTIONS[name] ?? [name, ''];
    const field = this.#options.get(name) ?? textField(label, example);
    this.#options.set(name, field);
    return this.#row(label, field);
  }

  #row(text: string, control: HTMLElement): HTMLElement {
    const known = this.#rows.get(control);
    if (known) {
      return known;
    }
    const node = element('label', 'lab-field');
    node.append(element('span', '', text), control);
    this.#rows.set(control, node);
    return node;
  }

  #show(control: HTMLElement, isShown: boolean): void {
    this.#row('', control).hidden = !isShown;
  }

  #update(told = ''): void {
    const made = lineOf(this.#choice);
    const sizes = sizesOf(this.#choice);
    this.#sizes.setAttribute('aria-invalid', String(typeof sizes === 'string'));
    setText(this.#line, made.line);
    setText(this.#told, told || made.wrong);
    this.#told.classList.toggle('mnb-mod-wrong', told !== '' || made.isWrong);
    this.#button.disabled = made.wrong !== '' || this.#isBusy;
    const doing = this.#isBusy ? 'Bringing up' : 'Bring up';
    this.#button.textContent = `${doing} ${made.what}`;
  }

  async #submit(): Promise<void> {
    const { line, wrong } = lineOf(this.#choice);
    if (wrong || this.#isBusy) {
      return;
    }
    this.#setBusy(true);
    let told = '';
    try {
      told = await this.up(line.replace(/^%mesh up /, ''));
    } finally {
      this.#setBusy(false, told);
    }
  }

  #setBusy(isBusy: boolean, told = ''): void {
    this.#isBusy = isBusy;
    this.#update(told);
  }
}
