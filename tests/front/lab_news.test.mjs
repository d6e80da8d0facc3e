// What a person is told who is elsewhere: of cells that have ended, of meshes that need a look, of ranks that lack something.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  endedOf,
  isTold,
  tellerOf,
  wordsOf
} from '../../labextension/lib/labextension/src/news/ended.js';
import { titleOf } from '../../labextension/lib/labextension/src/news/tabtitle.js';
import { wordsOf as replayWords } from '../../labextension/lib/labextension/src/panel/replay.js';
import { Mesh } from '../../monarch_nb/notebook/view/front/data/model.js';

const CELL = { number: 7, id: 'a', since: 1000, watched: false };

test('a cell has ended when another runs, or none, or it runs again', () => {
  assert.equal(endedOf(null, CELL), null);
  assert.equal(endedOf(CELL, { ...CELL, watched: true }), null);
  assert.equal(endedOf(CELL, null), CELL);
  assert.equal(endedOf(CELL, { ...CELL, number: 8 }), CELL);
  assert.equal(endedOf(CELL, { ...CELL, since: 2000 }), CELL);
});

test('long cells are told, and short ones that somebody has asked for', () => {
  const choice = { notify: true, notifyAfter: 60 };
  assert.equal(isTold(CELL, 59_999, choice), false);
  assert.equal(isTold(CELL, 60_000, choice), true);
  assert.equal(isTold(CELL, 60_000, { ...choice, notify: false }), false);
  assert.equal(isTold({ ...CELL, watched: true }, 5, { ...choice, notify: false }), true);
});

test('the browser speaks to who is elsewhere, the page to who looks at another part of it', () => {
  assert.equal(tellerOf(false, true, 'granted'), 'browser');
  assert.equal(tellerOf(false, false, 'denied'), 'page');
  assert.equal(tellerOf(false, false, 'default'), 'page');
  assert.equal(tellerOf(true, false, 'granted'), 'page');
  assert.equal(tellerOf(true, true, 'granted'), null);
});

test('a notice says which cell, how it ended, where and why', () => {
  const of = (name, value) =>
    wordsOf({
      notebook: 'train.ipynb',
      number: 7,
      took_ms: 840_000,
      error: name === undefined ? null : { name, value }
    });
  assert.deepEqual(of(), ['train.ipynb: cell [7] has ended after 14 min', '']);
  assert.deepEqual(of('CellError', 'rank 2: OutOfMemoryError: CUDA out of memory\nmore'), [
    'train.ipynb: cell [7] failed on rank 2 after 14 min',
    'OutOfMemoryError: CUDA out of memory'
  ]);
  assert.equal(
    of('CellError', 'ranks 0-1,3: x')[0],
    'train.ipynb: cell [7] failed on ranks 0-1,3 after 14 min'
  );
  assert.deepEqual(of('ValueError', 'ranks are odd: 3'), [
    'train.ipynb: cell [7] failed after 14 min',
    'ValueError: ranks are odd: 3'
  ]);
  assert.equal(of('AssertionError', '')[1], 'AssertionError');
  assert.equal(of('', 'The kernel has died.')[1], 'The kernel has died.');
  assert.equal(
    of('KeyboardInterrupt', 'all ranks have stopped')[0],
    'train.ipynb: cell [7] was interrupted after 14 min'
  );
});

/** A mesh whose ranks have these states. */
function mesh(...states) {
  const found = new Mesh('m', ['gpus'], [states.length]);
  states.forEach((state, rank) => found.takeRow([String(rank), state, '', '', 0], new Set()));
  return found;
}

test('the title of the tab says what needs a look, and nothing else', () => {
  assert.equal(titleOf([]), '');
  assert.equal(titleOf([mesh('idle', 'busy', 'collective', 'starting')]), '');
  assert.equal(titleOf([mesh('idle', 'failed', 'idle', 'exited')]), '3/4 ranks, failed');
  assert.equal(titleOf([mesh('idle', 'paused'), mesh('unreachable', 'busy')]), '3/4 ranks, paused');
  assert.equal(titleOf([mesh('silent', 'failed')]), 'failed, silent');
});

test('a row says what ranks lack that were started again', () => {
  assert.deepEqual(replayWords({ line: '%mesh replay 3-4 --ranks 2', cells: '3-4', ranks: '2' }), [
    'Rank 2 has nothing of what cells 3-4 have defined',
    'Run cells 3-4 there'
  ]);
  assert.deepEqual(replayWords({ line: '%mesh replay 3', cells: '3', ranks: '0-1' }), [
    'Ranks 0-1 have nothing of what cell 3 has defined',
    'Run cell 3 there'
  ]);
});
