/**
 * A comm over a connection that has none: JupyterLab gives the comms of a kernel to one connection of a page, which
 * is the notebook's. Ours are told apart by their id, so that both can listen.
 */

import { type Kernel, KernelMessage } from '@jupyterlab/services';
import { type JSONObject, UUID } from '@lumino/coreutils';

/** What a link needs of a comm. */
export type Comm = Pick<Kernel.IComm, 'onMsg' | 'onClose' | 'isDisposed' | 'dispose'> & {
  open(data: JSONObject): unknown;
  send(data: JSONObject): unknown;
};

/** JupyterLab asks for a subshell only where it knows that there are some; ours has them, also while busy. */
export function withSubshells(kernel: Kernel.IKernelConnection): Kernel.IKernelConnection {
  return Object.create(kernel, { supportsSubshells: { value: true } }) as Kernel.IKernelConnection;
}

export class OwnComm implements Comm {
  onMsg: Comm['onMsg'] = () => undefined;
  onClose: Comm['onClose'] = () => undefined;
  isDisposed = false;
  /** Where the kernel reads it also while it is busy; null: where cells run. */
  subshell: string | null = null;
  readonly #id = UUID.uuid4();

  constructor(
    private readonly kernel: Kernel.IKernelConnection,
    private readonly target: string
  ) {
    kernel.iopubMessage.connect(this.#hear);
  }

  open(data: JSONObject): void {
    this.#say('comm_open', { target_name: this.target, data });
  }

  send(data: JSONObject): void {
    this.#say('comm_msg', { data });
  }

  /** The kernel lets it go, too, and then the subshell. */
  dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.isDisposed = true;
    if (!this.kernel.isDisposed) {
      this.kernel.iopubMessage.disconnect(this.#hear);
      void this.#leave();
    }
  }

  async #leave(): Promise<void> {
    try {
      await this.#say('comm_close', { data: {} }).done;
      if (this.subshell !== null) {
        withSubshells(this.kernel).requestDeleteSubshell({ subshell_id: this.subshell });
      }
    } catch {
      // the kernel went meanwhile
    }
  }

  #say(msgType: 'comm_open' | 'comm_msg' | 'comm_close', content: JSONObject): Kernel.IShellFuture {
    const message = KernelMessage.createMessage<KernelMessage.ICommMsgMsg<'shell'>>({
      msgType: msgType as 'comm_msg',
      channel: 'shell',
      username: this.kernel.username,
      session: this.kernel.clientId,
      subshellId: this.subshell,
      content: { comm_id: this.#id, ...content } as KernelMessage.ICommMsgMsg['content']
    });
    return this.kernel.sendShellMessage(message, false, true);
  }

  readonly #hear = (_: unknown, message: KernelMessage.IIOPubMessage): void => {
    if ((message.content as { comm_id?: string }).comm_id !== this.#id) {
      return;
    }
    if (message.header.msg_type === 'comm_msg') {
      void this.onMsg(message as KernelMessage.ICommMsgMsg);
    } else if (message.header.msg_type === 'comm_close') {
      this.isDisposed = true;
      void this.onClose(message as KernelMessage.ICommCloseMsg);
    }
  };
}
