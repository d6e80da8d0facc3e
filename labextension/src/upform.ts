/** The form that brings up a mesh. */

import { choiceField, statusLine, textField } from './fields.js';
import { element } from './front.js';
import { parseSizes, ranksText, type Shape } from './sizes.js';

export interface Wish {
  sizes: Record<string, number>;
  name: string;
  device: string;
}

const DEVICES = ['auto', 'cpu', 'cuda'].map((one): [string, string] => [one, one]);

export class UpForm {
  readonly node = element('form', 'upform');
  readonly #sizes = textField('Sizes', 'hosts=2 gpus=4');
  readonly #name = textField('Name', 'as you like');
  readonly #device = choiceField('Device', DEVICES);
  readonly #told = statusLine('upform-told');
  readonly #button = element('button', 'button mnb-mod-primary');
  #isBusy = false;

  /** `up` settles when the mesh is up, or not. */
  constructor(private readonly up: (wish: Wish) => Promise<void>) {
    this.#sizes.value = 'gpus=4';
    this.#button.type = 'submit';
    this.node.append(
      labelled('Size', this.#sizes),
      labelled('Device', this.#device),
      labelled('Name', this.#name),
      this.#told,
      this.#button
    );
    this.#sizes.addEventListener('input', () => { this.#update(); });
    this.node.addEventListener('submit', event => {
      event.preventDefault();
      void this.#submit();
    });
    this.#update();
  }

  focus(): void {
    this.#sizes.focus();
    this.#sizes.select();
  }

  get #shape(): Shape | string {
    return parseSizes(this.#sizes.value);
  }

  #update(): void {
    const shape = this.#shape;
    const isWrong = typeof shape === 'string';
    this.#sizes.setAttribute('aria-invalid', String(isWrong));
    this.#told.textContent = isWrong ? shape : '';
    this.#button.disabled = isWrong || this.#isBusy;
    const doing = this.#isBusy ? 'Bringing up' : 'Bring up';
    this.#button.textContent = isWrong ? 'Bring up a mesh' : `${doing} ${ranksText(shape.ranks)}`;
  }

  async #submit(): Promise<void> {
    const shape = this.#shape;
    if (typeof shape === 'string' || this.#isBusy) {
      return;
    }
    this.#setBusy(true);
    try {
      await this.up({ sizes: shape.sizes, name: this.#name.value.trim(), device: this.#device.value });
    } finally {
      this.#setBusy(false);
    }
  }

  #setBusy(isBusy: boolean): void {
    this.#isBusy = isBusy;
    this.#update();
  }
}

function labelled(text: string, control: HTMLElement): HTMLElement {
  const node = element('label', 'lab-field');
  node.append(element('span', '', text), control);
  return node;
}
