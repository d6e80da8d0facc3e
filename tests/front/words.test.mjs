// What is said: states, ages, numbers, names of cells.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  ageText,
  cellNumber,
  countsText,
  isDead,
  markOf,
  memoryText,
  takenText
} from '../../monarch_nb/notebook/view/front/data/words.js';
import { extent, numberText, ticks } from '../../monarch_nb/notebook/view/front/data/curves.js';

const STATES =
  'starting idle busy collective paused silent leaving exited unreachable failed stopped'.split(
    ' '
  );

test('every state has a word and a shape, and what is lost has a cross', () => {
  for (const state of STATES) assert.notEqual(markOf(state).word, 'not known', state);
  assert.deepEqual(STATES.filter(isDead), ['exited', 'unreachable']);
  assert.equal(markOf('constructor').word, 'not known');
  const alive = [
    'starting',
    'idle',
    'busy',
    'collective',
    'paused',
    'silent',
    'leaving',
    'failed',
    'exited'
  ];
  assert.equal(new Set(alive.map(state => markOf(state).shape)).size, alive.length);
});

test('counts are told in a fixed order, also of states that come one day', () => {
  assert.equal(countsText({ failed: 1, busy: 7 }), '7 busy, 1 failed');
  assert.equal(countsText({ dreaming: 2, idle: 1 }), '1 idle, 2 not known');
});

test('ages and amounts are told as people do', () => {
  assert.deepEqual([0, 900, 59_999, 60_000, 3_599_000, 3_600_000, 200_000_000].map(ageText), [
    '0 s',
    '0 s',
    '59 s',
    '1:00',
    '59:59',
    '1 h 0 min',
    '2 d 7 h'
  ]);
  assert.equal(ageText(-5), '0 s');
  const taken = new Date(2026, 4, 3, 14, 3, 22);
  assert.equal(takenText(taken, taken.getTime() + 9_000), 'taken 14:03:22');
  assert.equal(takenText(taken, taken.getTime() + 90_000), 'taken 14:03:22, 1:30 ago');
  assert.deepEqual([312.4, 1536].map(memoryText), ['312 MiB', '1.5 GiB']);
});

test('ticks are round and within', () => {
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(ticks(-1, 1, 4), [-1, -0.5, 0, 0.5, 1]);
  assert.deepEqual(ticks(3, 3, 4), [3]);
  assert.deepEqual(ticks(NaN, NaN, 4), []);
  assert.ok(ticks(2 ** 56, 2 ** 56 + 16, 12).length <= 16, 'numbers that one cannot be added to');
  for (let i = 1; i < 200; i++) assert.ok(ticks(-i * 0.37, i ** 3 * 1.1, 5).length <= 12);
});

test('numbers are short, and ranges leave out what is no number', () => {
  assert.deepEqual(
    [0, 0.36792, 1234.5678, 1.5e-7, 3.2e9, NaN, Infinity, -Infinity].map(numberText),
    ['0', '0.3679', '1235', '1.5e-7', '3.2e9', '–', '∞', '-∞']
  );
  assert.deepEqual(extent([3, NaN, 1, Infinity]), [1, 3]);
  assert.deepEqual(extent([0, 0]), [-1, 1]);
  assert.equal(extent([NaN]), null);
});

test('the cell that a rank runs is found in the words', () => {
  assert.equal(cellNumber('cell In[12]'), 12);
  assert.equal(cellNumber('all_reduce in In [3]'), 3);
  assert.equal(cellNumber('Trainer.step'), null);
  assert.equal(cellNumber('min[3]'), null);
});
