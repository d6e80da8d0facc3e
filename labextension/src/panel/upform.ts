/** The form that brings up a mesh. */

import { element } from '../front.js';
import { choiceField, statusLine, textField } from '../ui/elements.js';

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

export interface Shape {
  sizes: Record<string, number>;
  ranks: number;
}

const AXIS = /^([A-Za-z_]\w*)\s*=\s*(\d{1,7})$/;
const MOST_RANKS = 100_000;

/** What the text means, or a sentence of what is wrong with it. */
export function parseSizes(text: string): Shape | string {
  const words = text.trim().replace(/\s*=\s*/g, '=').split(/[\s,x×]+(?=\S)/).filter(Boolean);
  if (words.length === 0) {
    return 'Say how many: gpus=4, or hosts=2 gpus=4';
  }
  const sizes: Record<string, number> = {};
  for (const word of words) {
    const found = AXIS.exec(/^\d+$/.test(word) && words.length === 1 ? `gpus=${word}` : word);
    if (!found) {
      return `"${word}" is no axis and size; write it like gpus=4`;
    }
    const [, name, size] = found;
    if (Object.hasOwn(sizes, name)) {
      return `"${name}" is there twice`;
    }
    if (Number(size) < 1) {
      return `${name} is at least 1`;
    }
    sizes[name] = Number(size);
  }
  const ranks = Object.values(sizes).reduce((a, b) => a * b, 1);
  return ranks > MOST_RANKS ? `${ranks} ranks are more than ${MOST_RANKS}` : { sizes, ranks };
}

/** "1 rank", "8 ranks". */
export function ranksText(count: number): string {
  return count === 1 ? '1 rank' : `${count} ranks`;
}
