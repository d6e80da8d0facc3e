// The lines of a log panel, and what is saved with an output. Of the compiled extension.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  hits,
  LogLines,
  plain,
  searchOf
} from '../../labextension/lib/labextension/src/mainarea/loglines.js';
import {
  isSame,
  readSaved,
  Still,
  timeText
} from '../../labextension/lib/labextension/src/outputs/saved.js';
import { Model } from '../../monarch_nb/notebook/view/front/data/model.js';

const line = (seq, rank = 0, text = `line ${seq}`, level = '') => [
  seq,
  'm',
  rank,
  'stdout',
  level,
  text,
  0
];
const many = (from, to) => Array.from({ length: to - from }, (_, i) => line(from + i));
const all = { ranks: null, level: '', search: null, only: false };

test('lines come once, in their order', () => {
  const lines = new LogLines(100);
  lines.append(many(0, 5));
  assert.deepEqual(lines.append([line(3), line(4), line(5)]), [line(5)]);
  lines.merge([line(2), line(-1)]);
  assert.deepEqual([lines.first, lines.last, lines.size], [-1, 5, 7]);
});

test('the oldest lines go where there are too many, and are counted', () => {
  const lines = new LogLines(100);
  lines.append(many(0, 109));
  assert.equal(lines.size, 109);
  assert.equal(lines.append(many(109, 150)), null);
  assert.deepEqual([lines.size, lines.first, lines.gone], [100, 50, 50]);
  lines.append([], 7);
  assert.equal(lines.skipped, 7);
});

/** A kernel that keeps these lines and tells the last before a number, as many as fit on a page. */
const kernel = (kept, page) => before => {
  const earlier = kept.filter(one => before === null || one[0] < before);
  return earlier.slice(-page);
};
const fillAll = (lines, ask) => {
  for (let gap; (gap = lines.gaps.at(-1));) {
    lines.fill(gap, ask(gap.before));
  }
};
const numbers = lines => lines.shown.map(one => one[0]);
const upTo = count => Array.from({ length: count }, (_, i) => i);

test('what a flood has made the kernel skip is put in its place, page by page', () => {
  const lines = new LogLines(100);
  lines.append(many(0, 2));
  lines.append(many(9, 11), 7);
  lines.append(many(11, 20));
  lines.append(many(28, 30), 8);
  assert.deepEqual([lines.size, lines.skipped], [15, 15]);
  lines.fill(lines.gaps.at(-1), many(24, 28));
  assert.deepEqual([lines.size, lines.skipped], [19, 11]);
  fillAll(lines, kernel(many(0, 30), 4));
  assert.deepEqual(numbers(lines), upTo(30));
  assert.equal(lines.skipped, 0);
});

test('what the kernel counts twice or keeps no more does not make the filling go on for ever', () => {
  const lines = new LogLines(100);
  lines.append(many(0, 2));
  lines.append(many(6, 8), 400);
  fillAll(lines, kernel(many(0, 8), 3));
  assert.deepEqual([numbers(lines), lines.skipped], [upTo(8), 0]);
  lines.append(many(90, 92), 82);
  fillAll(lines, kernel(many(80, 92), 3));
  assert.deepEqual([lines.size, lines.skipped], [20, 72]);
});

test('lines that come while a gap is filled are no part of it', () => {
  const lines = new LogLines(100);
  lines.append(many(0, 2));
  lines.append([], 4);
  const [gap] = lines.gaps;
  lines.append(many(6, 8));
  lines.append(many(10, 12), 2);
  lines.fill(gap, many(3, 12));
  lines.fill(gap, many(0, 3));
  assert.deepEqual(numbers(lines), [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]);
  lines.append(many(6, 8), 9);
  assert.equal(lines.skipped, 2, 'all of it was here before');
  fillAll(lines, kernel(many(0, 12), 5));
  assert.deepEqual(numbers(lines), upTo(12));
});

test('lines that were skipped and would go again are not asked for', () => {
  const lines = new LogLines(10);
  lines.append(many(0, 2));
  lines.append(many(7, 9), 5);
  lines.append(many(9, 20));
  assert.deepEqual([lines.size, lines.gaps], [10, []]);
});

test('what was skipped after all was cleared comes back, and what was cleared does not', () => {
  const lines = new LogLines(100);
  lines.append(many(0, 2));
  lines.append(many(4, 6), 2);
  const [gap] = lines.gaps;
  lines.clear();
  lines.fill(gap, many(0, 4));
  lines.append([line(9)], 3);
  fillAll(lines, kernel(many(0, 10), 2));
  assert.deepEqual([numbers(lines), lines.skipped], [[6, 7, 8, 9], 0]);
});

test('another kernel counts its lines from the start', () => {
  const lines = new LogLines(100);
  lines.append(many(50, 60));
  lines.clear(-1);
  lines.append(many(1, 3));
  lines.append(many(5, 6), 2);
  fillAll(lines, kernel(many(1, 6), 2));
  assert.deepEqual([numbers(lines), lines.skipped], [[1, 2, 3, 4, 5], 0]);
});

test('lines that came after one are counted among those that are shown', () => {
  const lines = new LogLines(100);
  lines.append(many(0, 5));
  assert.deepEqual(
    [-1, 2, 4].map(seq => lines.newer(seq)),
    [5, 2, 0]
  );
});

test('ranks, levels and searches choose lines', () => {
  const lines = new LogLines(100);
  lines.append([
    line(0, 0, 'loss 1'),
    line(1, 1, 'loss 2', 'warning'),
    line(2, 1, 'done', 'error')
  ]);
  const shown = choice => {
    lines.choose({ ...all, ...choice });
    return lines.shown.map(one => one[0]);
  };
  assert.deepEqual(shown({ ranks: new Set([1]) }), [1, 2]);
  assert.deepEqual(shown({ level: 'warning' }), [1, 2]);
  assert.deepEqual(shown({ level: 'error' }), [2]);
  assert.deepEqual(shown({ search: searchOf('loss') }), [0, 1, 2]);
  assert.equal(lines.found, 2);
  assert.deepEqual(shown({ search: searchOf('loss'), only: true }), [0, 1]);
  assert.deepEqual(lines.append([line(3, 0, 'else'), line(4, 0, 'loss')]), [line(4, 0, 'loss')]);
});

test('a search finds every place, after another line was tested too', () => {
  const search = searchOf('ab');
  const lines = new LogLines(10);
  lines.choose({ ...all, search });
  lines.append([line(0, 0, 'xxxx ab')]);
  assert.deepEqual(hits('ab ab', search), [
    [0, 2],
    [3, 5]
  ]);
  assert.deepEqual(hits('AB', searchOf('AB')), [[0, 2]]);
  assert.deepEqual(hits('ab', searchOf('AB')), []);
  assert.equal(hits('a'.repeat(1000), searchOf('a')).length, 200);
});

test('a search that is none, or finds everything, is told apart', () => {
  assert.equal(typeof searchOf('('), 'string');
  assert.equal(searchOf(''), null);
  assert.equal(searchOf('x*'), null);
});

test('what a terminal would obey is taken away', () => {
  assert.equal(plain('\x1b[31mred\x1b[0m <b>'), 'red <b>');
  assert.equal(plain('\x1b]0;title\x07after'), 'after');
});

const snapshot = {
  v: 1,
  type: 'state',
  to: '',
  n: 0,
  at: 5000,
  seconds: 0,
  cell: null,
  hosts: [{ name: 'here', ended: null }],
  meshes: {
    m: {
      labels: ['gpus'],
      sizes: [2],
      ended: null,
      hosts: [['0-1', 0]],
      pids: [11, 12],
      ranks: [['0-1', 'busy', 'train', '', 1000]],
      failures: []
    }
  }
};
const output = {
  v: 1,
  mesh: 'm',
  ranks: null,
  time: '2031-02-03T14:02:00',
  snapshot
};

test('a saved output is read, whatever is in it', () => {
  assert.deepEqual(readSaved({ ...output, ranks: [1] }).ranks, [1]);
  for (const data of [
    undefined,
    7,
    {},
    { ...output, mesh: 3 },
    { ...output, snapshot: { v: 9 } }
  ]) {
    assert.equal(typeof readSaved(data), 'string');
  }
  assert.equal(readSaved({ ...output, ranks: ['x'] }).ranks, null);
});

test('the mesh of another kernel with the same name is not the saved one', () => {
  const model = new Model();
  const saved = readSaved(output);
  assert.equal(isSame(saved, model), false);
  model.apply({ ...snapshot, n: 1 });
  assert.equal(isSame(saved, model), true);
  model.apply({ ...snapshot, n: 2, meshes: { m: { ...snapshot.meshes.m, pids: [11, 99] } } });
  assert.equal(isSame(saved, model), true, 'one rank was healed');
  model.apply({ ...snapshot, n: 3, meshes: { m: { ...snapshot.meshes.m, pids: [21, 22] } } });
  assert.equal(isSame(saved, model), false);
});

test('the picture says when it was taken, and its times stand', async () => {
  const still = new Still(readSaved(output));
  const mesh = still.model.meshes.get('m');
  assert.match(mesh.ended, /^2 ranks: 2 busy, as of .*(14|02):02[^;]*$/);
  still.tellGone();
  still.tellGone();
  assert.match(mesh.ended, /^2 ranks: 2 busy, as of .*(14|02):02.*; the kernel of then is gone$/);
  assert.equal(still.model.clock - mesh.since(0), 4000);
  still.pace({}, 100);
  await assert.rejects(still.ask('rank', { mesh: 'm', rank: 0 }), /The kernel is gone/);
  assert.equal(still.state, 'live');
});

test('a time is told as a clock tells it, with the day when it was another', () => {
  const now = new Date('2031-02-03T15:00:00');
  assert.match(timeText('2031-02-03T14:02:00', now), /^\d\d:02/);
  assert.match(timeText('2031-02-01T14:02:00', now), /2031.*:02/);
  assert.equal(timeText('soon', now), 'an earlier time');
});
