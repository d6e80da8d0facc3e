/**
 * The comm between this page and a kernel.
 * Rule of the file: a target is opened only where the kernel is known to have it; over a subshell where
 * there are some, since a busy kernel reads its main shell when the cell has ended.
 */

import type { Kernel, KernelMessage } from '@jupyterlab/services';

import { Connection, type Transport } from '../front.js';
import { type Comm, OwnComm, withSubshells } from './owncomm.js';

export const TARGET = 'monarch_nb.mesh';
/** A kernel that has loaded the extension opens this one, and keeps it open. */
export const ANNOUNCEMENT = 'monarch_nb.announce';

const SUBSHELL_MS = 5_000;
/** A kernel that is busy when the page comes says what it can do when its cell has ended. */
const INFO_MS = 1_000;

/** An open comm. Throws where the kernel has gone meanwhile. */
export async function openComm(kernel: Kernel.IKernelConnection): Promise<Comm> {
  const isKnown = await Promise.race([kernel.info.then(() => true), pause(INFO_MS)]);
  const comm = kernel.handleComms ? await labComm(kernel, isKnown) : await ownComm(kernel, isKnown);
  comm.open({});
  return comm;
}

async function labComm(kernel: Kernel.IKernelConnection, isKnown = false): Promise<Comm> {
  const comm = kernel.createComm(TARGET);
  if (!isKnown) {
    // JupyterLab would move it to another subshell once it knows the kernel. What is sent there may be read before
    // the comm is open here, and is lost then.
    Object.assign(comm, { commsOverSubshells: 'disabled' });
    const subshell = await subshellOf(kernel);
    if (subshell !== null) {
      Object.assign(comm, { _subshellId: subshell, _commsOverSubshells: 'perComm' }); // it ends with the comm
    }
  } else if (kernel.supportsSubshells) {
    const { subshellStarted } = comm as unknown as { subshellStarted?: Promise<void> };
    await Promise.race([subshellStarted?.catch(() => undefined), pause(SUBSHELL_MS)]);
  }
  return comm;
}

async function ownComm(kernel: Kernel.IKernelConnection, isKnown = false): Promise<Comm> {
  const comm = new OwnComm(kernel, TARGET);
  comm.subshell = isKnown && !kernel.supportsSubshells ? null : await subshellOf(kernel);
  return comm;
}

/** A new one; null where the kernel has none. */
async function subshellOf(kernel: Kernel.IKernelConnection): Promise<string | null> {
  const asked = withSubshells(kernel).requestCreateSubshell({}).done;
  const told = await Promise.race([asked.catch(() => undefined), pause(SUBSHELL_MS)]);
  return told?.content.subshell_id ?? null;
}

/** What a `Connection` sends by and listens to. */
export function transportOf(comm: Comm): Transport {
  return {
    send: message => {
      comm.send(message as Parameters<Comm['send']>[0]);
    },
    listen: listener => {
      comm.onMsg = (message: KernelMessage.ICommMsgMsg) => {
        listener(message.content.data);
      };
      return () => {
        comm.onMsg = () => undefined;
      };
    }
  };
}

/** Whether the kernel is one of ours: it has the target from its start. */
export async function isMonarch(kernel: Kernel.IKernelConnection): Promise<boolean> {
  return (await kernel.spec)?.metadata?.monarch === true;
}

/** Whether the kernel has announced itself before this page came. Late where it is busy. */
export async function hasAnnounced(kernel: Kernel.IKernelConnection): Promise<boolean> {
  const { content } = await kernel.requestCommInfo({ target_name: ANNOUNCEMENT });
  return content.status === 'ok' && Object.keys(content.comms).length > 0;
}

function pause(ms: number): Promise<undefined> {
  return new Promise(resolve => setTimeout(resolve, ms));
}

const ALL = ['strips', 'curves', 'failures', 'actors'];
const LITTLE = ['failures'];

export class WatchedConnection extends Connection {
  /** `idle_ms` is the period while no view is in sight, `period_ms` that of views. */
  constructor(transport: Transport, idle_ms: number, period_ms: number) {
    super(transport, { period_ms: idle_ms, parts: LITTLE });
    this.open();
    this.pace(this, idle_ms);
    this.period = period_ms;
  }

  /** For views that come into sight, and those that are. */
  setPeriod(period_ms: number): void {
    this.period = period_ms;
    for (const [viewer, period] of this.paces) {
      if (viewer !== this && period !== null) {
        this.pace(viewer, period_ms);
      }
    }
  }

  override pace(viewer: object, period_ms: number | null | undefined): void {
    super.pace(viewer, period_ms);
    if (this.state !== 'lost' && this.parts !== this.#wantedParts) {
      this.hello();
    }
  }

  override hello(): void {
    this.parts = this.#wantedParts;
    super.hello();
  }

  get #wantedParts(): string[] {
    const isWatched = [...this.paces].some(([viewer, period]) => viewer !== this && period !== null);
    return isWatched ? ALL : LITTLE;
  }
}
