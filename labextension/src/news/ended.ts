/** A cell that has ended: whether a person is told, by whom, and in which words. Decisions only. */

import { timeText } from '../ui/times.js';

/** As the kernel tells the one that runs; `since` in ms of its clock. */
export interface RunningCell {
  number: number;
  id: string | null;
  since: number;
  watched?: boolean;
}

export interface Ended {
  notebook: string;
  number: number;
  took_ms: number;
  /** What its error output says; null: it has none. */
  error: { name: string; value: string } | null;
}

/** The cell that has ended, if one has: another runs now, or none. */
export function endedOf(before: RunningCell | null, now: RunningCell | null): RunningCell | null {
  return before && (before.number !== now?.number || before.since !== now.since) ? before : null;
}

/** Whether its end is worth a word: it was long, or somebody has asked for it. */
export function isTold(
  { watched }: RunningCell,
  took_ms: number,
  { notify, notifyAfter }: { notify: boolean; notifyAfter: number }
): boolean {
  return watched === true || (notify && took_ms >= notifyAfter * 1000);
}

/** Who tells it: the browser where the person is elsewhere; else the page; nobody where it is seen as it ends. */
export function tellerOf(
  isPageInFront: boolean,
  isCellInSight: boolean,
  permission: string
): 'browser' | 'page' | null {
  if (isPageInFront) {
    return isCellInSight ? null : 'page';
  }
  return permission === 'granted' ? 'browser' : 'page';
}

/** A title, and what stands below it: "train.ipynb: cell [7] failed on rank 2 after 14 min", "CUDA out of memory". */
export function wordsOf({ notebook, number, took_ms, error }: Ended): [string, string] {
  const after = `after ${timeText(took_ms / 1000)}`;
  const cell = `${notebook}: cell [${number}]`;
  if (!error) {
    return [`${cell} has ended ${after}`, ''];
  }
  const [line = ''] = error.value.split('\n');
  if (error.name === 'KeyboardInterrupt') {
    return [`${cell} was interrupted ${after}`, line];
  }
  const [, ranks, why] = /^(ranks? [\d,-]+): (.*)/.exec(line) ?? [];
  return ranks
    ? [`${cell} failed on ${ranks} ${after}`, why]
    : [`${cell} failed ${after}`, [error.name, line].filter(Boolean).join(': ')];
}
