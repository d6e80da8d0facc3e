/** Which cells have code. */

import type { Cell, CodeCell } from '@jupyterlab/cells';

/** Told by the model: a page may have the class twice. */
export function isCode(cell: Cell | null | undefined): cell is CodeCell {
  return cell?.model.type === 'code';
}
