/** Who wants to know when something has changed. */
export class Listeners<T = void> {
  readonly #all = new Set<(value: T) => void>();

  /** Returns what takes the listener away again. */
  add(listener: (value: T) => void): () => void {
    this.#all.add(listener);
    return () => {
      this.#all.delete(listener);
    };
  }

  tell(value: T): void {
    for (const listener of [...this.#all]) {
      listener(value);
    }
  }

  clear(): void {
    this.#all.clear();
  }
}
