/**
 * What the user asks a mesh to do. Answers and refusals are shown in the kernel's words; what loses
 * values is asked first.
 */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';

import type { Connection, Mesh } from './front.js';

const SAID_MS = 4_000;

/** Do it, and show what is said. True if it was done. */
export async function act(
  connection: Connection,
  what: string,
  args: Record<string, unknown>
): Promise<boolean> {
  try {
    const { said } = await connection.do(what, args);
    Notification.emit(said, 'success', { autoClose: SAID_MS });
    return true;
  } catch (error) {
    showError(error);
    return false;
  }
}

export function showError(error: unknown): void {
  Notification.error(error instanceof Error ? error.message : String(error), { autoClose: 10_000 });
}

export function showNote(text: string): void {
  Notification.emit(text, 'info', { autoClose: SAID_MS });
}

/** All ranks of a mesh, as runs. */
export function allOf(mesh: Mesh): string {
  return mesh.size === 1 ? '0' : `0-${mesh.size - 1}`;
}

/** Ask before what loses values, where no button was pressed for it. */
export async function confirmLoss(title: string, body: string, label: string): Promise<boolean> {
  const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label })];
  const { button } = await showDialog({ title, body, buttons });
  return button.accept;
}
