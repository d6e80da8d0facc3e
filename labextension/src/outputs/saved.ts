/** What is saved with an output that shows a mesh: the mesh as it was then. No DOM here. */

import { Connection, type Kept, type Mesh, type Model, parse, type StateMessage } from '../front.js';

export const MIME = 'application/vnd.monarch-nb.mesh+json';

export interface Saved {
  mesh: string;
  ranks: number[] | null;
  /** When, for people. */
  time: string;
  snapshot: StateMessage;
}

/** The contents of an output, or a sentence of what is wrong with them. */
export function readSaved(data: unknown): Saved | string {
  const { mesh, ranks, time, snapshot } = (data ?? {}) as Partial<Record<keyof Saved, unknown>>;
  const state = parse(snapshot);
  if (typeof state === 'string' || state.type !== 'state' || typeof mesh !== 'string') {
    return 'This output shows a mesh in a way that this page cannot read.';
  }
  const isList = Array.isArray(ranks) && ranks.every(rank => Number.isInteger(rank));
  return { mesh, ranks: isList ? (ranks as number[]) : null, time: timeText(time), snapshot: state };
}

/** "14:02", with the day where that was another one. */
export function timeText(time: unknown, now = new Date()): string {
  const then = new Date(typeof time === 'string' ? time : NaN);
  if (isNaN(then.getTime())) {
    return 'an earlier time';
  }
  const clock = then.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  const isToday = then.toDateString() === now.toDateString();
  return isToday ? clock : `${then.toLocaleDateString()} ${clock}`;
}

/** Whether a kernel's mesh of that name is the saved one: a process of then is in its place still. */
export function isSame({ mesh, snapshot }: Saved, model: Pick<Model, 'meshes'>): boolean {
  const found = model.meshes.get(mesh);
  const pids = Object.hasOwn(snapshot.meshes, mesh) ? snapshot.meshes[mesh].pids : [];
  return found !== undefined && (pids ?? []).some((pid, rank) => pid === null || found.pid(rank) === pid);
}

/** Whether there is more to a picture than its grid. */
export function hasMore({ mesh, snapshot }: Saved): boolean {
  const { failures, strips, curves } = Object.hasOwn(snapshot.meshes, mesh) ? snapshot.meshes[mesh] : {};
  const hasLetters = strips?.some(strip => /[^.]/.test(strip)) ?? false;
  return Boolean(failures?.length) || hasLetters || Object.keys(curves ?? {}).length > 0;
}

/** The bundle of an output that shows this: our own format, and the same for readers without us. */
export function bundleOf(saved: Saved, kept: Kept, then: Date): Record<string, unknown> {
  const { mesh, ranks } = saved;
  const title = `${mesh}: ${kept.summary}`;
  const when = then.toLocaleString();
  const text = [title, `as of ${when}`, ...kept.failures.map(failure => `✕ ${failure}`)];
  const failures = kept.failures.map(failure => `<div>✕ ${escaped(failure)}</div>`).join('');
  const image = kept.picture.toDataURL('image/png');
  return {
    'text/plain': text.join('\n'),
    'text/html':
      `<div style="line-height:1.6"><b>${escaped(mesh)}</b> ${escaped(kept.summary)} ` +
      `<span style="opacity:.65">as of ${escaped(when)}</span>` +
      `<div><img alt="${escaped(title)}" src="${image}" style="max-width:100%"></div>${failures}</div>`,
    [MIME]: { v: 1, mesh, ranks, time: then.toISOString(), snapshot: kept.state }
  };
}

function escaped(text: string): string {
  const signs: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' };
  return text.replace(/[&<>"]/g, sign => signs[sign]);
}

/** A connection to nothing, with the mesh as it was. */
export class Still extends Connection {
  /** Whether something may be added to what stands beside the name. */
  #isOpen = false;

  constructor(private readonly saved: Saved) {
    super({ send: () => undefined, listen: () => () => undefined });
    this.model.now = () => 0;
    this.model.apply(saved.snapshot);
    const found = this.#mesh;
    if (found) {
      this.#isOpen = found.ended === null;
      const then = `${found.summary()}, as of ${saved.time}`;
      found.ended = found.ended === null ? then : `${then}; ${found.ended}`;
    }
    this.setState('live');
  }

  /** Say that its kernel is gone, once that is known. */
  tellGone(): void {
    const { n } = this.model;
    if (this.#isOpen && this.#mesh) {
      this.#isOpen = false;
      const ended = `${this.#mesh.ended}; the kernel of then is gone`;
      this.model.apply({ v: 1, type: 'delta', base: n, n: n + 1, at: 0, meshes: { [this.saved.mesh]: { ended } } });
    }
  }

  get #mesh(): Mesh | undefined {
    return this.model.meshes.get(this.saved.mesh);
  }

  override hello(): void {
    // there is nobody to greet
  }

  override rest(): void {
    // nor to take leave of
  }

  override request(): Promise<never> {
    return Promise.reject(new Error(`The kernel is gone; this is how the mesh was at ${this.saved.time}.`));
  }
}
