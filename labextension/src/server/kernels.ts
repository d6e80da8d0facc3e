/**
 * The kernels of this server that may have meshes, whoever has started them, and a way to each that somebody
 * looks at.
 * Rule of the file: which kernels there are, JupyterLab knows anyhow; what nobody looks at is not connected; a kernel
 * is never waited for.
 */

import type { Kernel, ServiceManager, Session } from '@jupyterlab/services';

import { Link, type Links } from '../kernel/links.js';
import { Listeners } from '../kernel/listeners.js';

/** How often a kernel tells what is in no view, ms. */
const SELDOM_MS = 5_000;
/** The kernel is told that nobody looks any more. */
const GOODBYE_MS = 2_000;
const ENDED = 'The kernel has ended.';

/** A kernel, and what it is for. */
export interface MeshKernel {
  id: string;
  /** Of its kernelspec. */
  spec: string;
  /** "train.ipynb" */
  name: string;
  path: string;
  isBusy: boolean;
}

/** A link that was borrowed. Others may have the same. */
export interface Lease {
  readonly link: Link;
  /** Once: it is not looked at any more. */
  release(): void;
}

export class ServerKernels {
  readonly changed = new Listeners();
  readonly #lent = new Map<string, { link: Link; users: number }>();

  /** `period`: how often a kernel tells what is in sight. */
  constructor(
    private readonly services: ServiceManager.IManager,
    private readonly links: Links,
    private readonly period: () => number
  ) {
    services.sessions.runningChanged.connect(() => { this.changed.tell(); });
    services.kernelspecs.specsChanged.connect(() => { this.changed.tell(); });
  }

  /** Settles when it is known which there are. */
  get ready(): Promise<unknown> {
    return Promise.all([this.services.sessions.ready, this.services.kernelspecs.ready]);
  }

  get all(): MeshKernel[] {
    const specs = this.services.kernelspecs.specs?.kernelspecs ?? {};
    const isMonarch = ({ id, name }: Kernel.IModel) =>
      specs[name]?.metadata?.monarch === true || Boolean(this.links.known(id)?.connection);
    return kernelsOf(this.services.sessions.running(), isMonarch);
  }

  /** What a notebook of this page has anyhow. */
  known(id: string): Link | null {
    return this.links.known(id);
  }

  /** A link that depends on no notebook. */
  borrow({ id, spec }: Pick<MeshKernel, 'id' | 'spec'>): Lease {
    const lent = this.#lent.get(id) ?? this.#connect(id, spec);
    lent.users += 1;
    return {
      link: lent.link,
      release: () => {
        lent.users -= 1;
        if (lent.users === 0) {
          this.#lent.delete(id);
          lent.link.dispose(ENDED);
          setTimeout(() => { lent.link.kernel.dispose(); }, GOODBYE_MS);
        }
      }
    };
  }

  #connect(id: string, name: string): { link: Link; users: number } {
    // comms are the notebook's, which may be opened in this page at any time
    const kernel = this.services.kernels.connectTo({ model: { id, name }, handleComms: false });
    const link = new Link(kernel, SELDOM_MS, this.period);
    kernel.disposed.connect(() => { link.dispose(ENDED); });
    const lent = { link, users: 0 };
    this.#lent.set(id, lent);
    return lent;
  }
}

/** Those of ours, each once, in the order of their names. */
export function kernelsOf(
  sessions: Iterable<Pick<Session.IModel, 'path' | 'name' | 'kernel'>>,
  isMonarch: (kernel: Kernel.IModel) => boolean
): MeshKernel[] {
  const found = new Map<string, MeshKernel>();
  for (const { path, name, kernel } of sessions) {
    if (kernel && isMonarch(kernel) && !found.has(kernel.id)) {
      found.set(kernel.id, {
        id: kernel.id,
        spec: kernel.name,
        name: name || (path.split('/').pop() ?? path),
        path,
        isBusy: kernel.execution_state === 'busy'
      });
    }
  }
  return [...found.values()].sort((one, other) => one.name.localeCompare(other.name));
}
