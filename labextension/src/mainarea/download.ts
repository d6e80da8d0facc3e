/** The whole logs of ranks as one file: all that the kernel has, not only the lines that are here. */

import type { Connection } from '../front.js';

interface Piece {
  text: string;
  /** What to ask with for the next one; null after the last. */
  after: string | null;
}

/**
 * Ask for them piece by piece, and have the browser save them.
 * @param ranks "0-3,7"; null: all
 * @param tell hears how many characters have come
 * @param isOver whether nobody waits any more
 */
export async function saveLogs(
  connection: Connection,
  mesh: string,
  ranks: string | null,
  tell: (size: number) => void,
  isOver: () => boolean
): Promise<void> {
  const pieces: Blob[] = [];
  let size = 0;
  for (let after: string | null = ''; after !== null;) {
    const piece = (await connection.ask('whole_logs', { mesh, ranks, after })) as Piece;
    if (isOver()) {
      return;
    }
    pieces.push(new Blob([piece.text]));
    size += piece.text.length;
    tell(size);
    after = piece.after;
  }
  save([mesh, ranks, 'log.txt'].filter(Boolean).join('.'), new Blob(pieces, { type: 'text/plain' }));
}

function save(name: string, content: Blob): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(content);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => { URL.revokeObjectURL(link.href); }, 60_000);
}
