/**
 * One link to each kernel that has a mesh, or may get one.
 * Rule of the file: kernels without a mesh notice nothing; a link that was lost by a restart comes back
 * by itself; who shows a link hears of each change.
 */

import type { Kernel } from '@jupyterlab/services';

import { ANNOUNCEMENT, hasAnnounced, isMonarch, openComm, transportOf, WatchedConnection } from './comms.js';
import { Listeners } from './listeners.js';
import type { Comm } from './owncomm.js';

/** plain: no mesh that we know of; gone: there was one, see `why`. */
export type Phase = 'plain' | 'opening' | 'open' | 'gone';

const RESTARTED = 'The kernel was restarted: its mesh is gone.';
const ENDINGS: Partial<Record<Kernel.Status, string>> = {
  restarting: RESTARTED,
  autorestarting: 'The kernel has died and was started again: its mesh is gone.',
  dead: 'The kernel has died: its mesh is gone.',
  terminating: 'The kernel was shut down: its mesh is gone.'
};
const NOT_REACHED = 'the connection to the server is lost; it is being tried again';
const CLOSED = 'The kernel has closed its view of the mesh.';

export class Link {
  readonly #idle_ms: number;
  readonly #period: () => number;
  connection: WatchedConnection | null = null;
  phase: Phase = 'plain';
  /** Whether the kernel has not said yet if it has a mesh. */
  isAsking = true;
  /** Why the last one is gone, a sentence; it stays when the kernel is back. */
  why = '';
  readonly changed = new Listeners();
  /** Counts openings and ends, so that what is late is known to be. */
  #turn = 0;
  #comm: Comm | null = null;
  /** Whether the kernel process has ended. It still speaks then. */
  #hasEnded = false;
  /** Whether another one has begun, which is asked once, when it first speaks. */
  #isNew = false;

  /** `idle_ms`: the period while nobody looks at a mesh; `period`: while somebody does. */
  constructor(
    readonly kernel: Kernel.IKernelConnection,
    idle_ms: number,
    period: () => number
  ) {
    this.#idle_ms = idle_ms;
    this.#period = period;
    kernel.statusChanged.connect(this.#onStatus);
    kernel.connectionStatusChanged.connect(this.#onConnection);
    kernel.registerCommTarget(ANNOUNCEMENT, this.#onAnnouncement);
    void this.#look();
  }

  /** Take leave of a kernel. */
  dispose(why = 'The notebook was closed.'): void {
    this.#turn += 1;
    if (!this.kernel.isDisposed) {
      this.kernel.statusChanged.disconnect(this.#onStatus);
      this.kernel.connectionStatusChanged.disconnect(this.#onConnection);
      this.kernel.removeCommTarget(ANNOUNCEMENT, this.#onAnnouncement);
    }
    this.#end('gone', why);
    this.changed.clear();
  }

  /** After a change of the settings. */
  setPeriod(): void {
    this.connection?.setPeriod(this.#period());
  }

  /** Find out whether the kernel has a mesh; never waited for. */
  async #look(): Promise<void> {
    const turn = ++this.#turn;
    this.isAsking = true;
    try {
      const has = (await isMonarch(this.kernel)) || (await this.#isKnown());
      if (has && turn === this.#turn) {
        await this.#open();
      }
    } catch {
      // the kernel went while it was asked: its next state is heard
    }
    this.isAsking = false;
    this.changed.tell();
  }

  async #isKnown(): Promise<boolean> {
    const { language_info } = await this.kernel.info;
    return language_info.name === 'python' && (await hasAnnounced(this.kernel));
  }

  async #open(): Promise<void> {
    const turn = ++this.#turn;
    this.#set('opening');
    try {
      const comm = await openComm(this.kernel);
      if (turn !== this.#turn) {
        comm.dispose();
        return;
      }
      this.#connect(comm);
    } catch {
      if (turn === this.#turn) {
        this.#set('plain');
      }
    }
  }

  #connect(comm: Comm): void {
    this.#comm = comm;
    comm.onClose = () => {
      this.#comm = null;
      this.#end('gone', CLOSED);
    };
    this.connection = new WatchedConnection(transportOf(comm), this.#idle_ms, this.#period());
    this.#set('open');
  }

  #end(phase: Phase, why: string): void {
    this.#turn += 1;
    const { connection } = this;
    const comm = this.#comm;
    this.#comm = null;
    this.connection = null;
    connection?.lost(why);
    connection?.close();
    if (comm && !comm.isDisposed) {
      comm.onClose = () => undefined;
      comm.dispose();
    }
    this.#set(connection || phase === 'plain' ? phase : this.phase, why);
  }

  #set(phase: Phase, why = ''): void {
    this.phase = phase;
    this.why = why || this.why;
    this.changed.tell();
  }

  readonly #onAnnouncement = (): void => {
    if (!this.connection && this.phase !== 'opening') {
      void this.#open();
    }
  };

  readonly #onStatus = (_: unknown, status: Kernel.Status): void => {
    const why = ENDINGS[status];
    if (why) {
      this.#lose(why);
    } else if (status === 'starting') {
      if (this.connection) {
        this.#lose(RESTARTED); // by another page
      }
      this.#isNew = this.#hasEnded;
    } else if (this.#isNew && (status === 'idle' || status === 'busy')) {
      this.#isNew = this.#hasEnded = false;
      void this.#look();
    }
  };

  readonly #onConnection = (_: unknown, status: Kernel.ConnectionStatus): void => {
    if (status === 'connected') {
      this.#isNew ||= this.#hasEnded;
    }
    if (!this.connection) {
      return;
    }
    if (status !== 'connected') {
      this.connection.lost(NOT_REACHED);
    } else if (this.connection.state === 'lost') {
      this.connection.reopen();
    }
  };

  #lose(why: string): void {
    this.#end(this.connection ? 'gone' : 'plain', why);
    this.#hasEnded = true;
    this.#isNew = false;
  }
}

/** The links of this page, by kernel. */
export class Links {
  readonly #all = new Map<string, Link>();

  constructor(
    private readonly idle_ms: number,
    private readonly period: () => number
  ) {}

  setPeriod(): void {
    for (const link of this.#all.values()) {
      link.setPeriod();
    }
  }

  /** The link that a notebook of this page has to a kernel. */
  known(id: string): Link | null {
    const link = this.#all.get(id);
    return link && !link.kernel.isDisposed ? link : null;
  }

  /** The link to a kernel; null where another part of the page has this kernel's comms. */
  of(kernel: Kernel.IKernelConnection): Link | null {
    const known = this.#all.get(kernel.id);
    if (known && !known.kernel.isDisposed) {
      return known;
    }
    known?.dispose();
    this.#all.delete(kernel.id);
    if (!kernel.handleComms || kernel.isDisposed) {
      return null;
    }
    const link = new Link(kernel, this.idle_ms, this.period);
    this.#all.set(kernel.id, link);
    kernel.disposed.connect(() => {
      link.dispose();
      this.#all.delete(kernel.id);
    });
    return link;
  }
}
