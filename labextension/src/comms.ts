/**
 * The comm between this page and a kernel.
 * Rule of the file: a target is opened only where the kernel is known to have it; over a subshell where
 * there are some, since a busy kernel reads its main shell when the cell has ended.
 */

import type { Kernel, KernelMessage } from '@jupyterlab/services';

import type { Transport } from './front.js';

export const TARGET = 'monarch_nb.mesh';
/** A kernel that has loaded the extension opens this one, and keeps it open. */
export const ANNOUNCEMENT = 'monarch_nb.announce';

const SUBSHELL_MS = 5_000;
/** A kernel that is busy when the page comes says what it can do when its cell has ended. */
const INFO_MS = 1_000;

/** An open comm. Throws where the kernel has gone meanwhile. */
export async function openComm(kernel: Kernel.IKernelConnection): Promise<Kernel.IComm> {
  const comm = kernel.createComm(TARGET);
  const isKnown = await Promise.race([kernel.info.then(() => true), pause(INFO_MS)]);
  if (!isKnown) {
    await Promise.race([subshellOfBusy(kernel, comm).catch(() => undefined), pause(SUBSHELL_MS)]);
  } else if (kernel.supportsSubshells) {
    const { subshellStarted } = comm as unknown as { subshellStarted?: Promise<void> };
    await Promise.race([subshellStarted?.catch(() => undefined), pause(SUBSHELL_MS)]);
  }
  comm.open({});
  return comm;
}

/** JupyterLab asks for a subshell only where it knows that there are some; ours has them, also while busy. */
async function subshellOfBusy(kernel: Kernel.IKernelConnection, comm: Kernel.IComm): Promise<void> {
  const able = Object.create(kernel, { supportsSubshells: { value: true } }) as typeof kernel;
  const { content } = await able.requestCreateSubshell({}).done;
  Object.assign(comm, { _subshellId: content.subshell_id });
}

/** What a `Connection` sends by and listens to. */
export function transportOf(comm: Kernel.IComm): Transport {
  return {
    send: message => {
      comm.send(message as Parameters<Kernel.IComm['send']>[0]);
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
