// What is said of ranks' variables where there is little room, and which part of a tensor is shown.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  colourOf,
  dotsOf,
  dotText,
  eachText,
  scaleOf,
  shortNumber
} from '../../labextension/lib/labextension/src/variables/picture.js';
import {
  headText,
  isOdd,
  planeOf,
  turned,
  typed,
  windowText
} from '../../labextension/lib/labextension/src/variables/place.js';
import {
  chosen,
  differences,
  linesOf,
  memoryOf,
  noteText,
  rankToOpen,
  shortText,
  sizeText,
  withLast
} from '../../labextension/lib/labextension/src/variables/told.js';

const NOTHING = { shape: null, dtype: null, bytes: null, length: null, parameters: null };
const group = (ranks, type, rest) => ({
  ...{ ranks, type, ...NOTHING, devices: [], values: [] },
  ...rest
});
const tensor = (ranks, shape, bytes) =>
  group(ranks, 'torch.Tensor', { shape, dtype: 'float32', bytes });
const variable = (name, groups, rest) => ({
  ...{ name, differs: groups.length > 1, missing: '', groups, more: 0 },
  ...rest
});
const values = (...all) => all.map((is, rank) => ({ ranks: String(rank), is }));

const X = variable('x', [tensor('0-1,3', [3, 1], 12), tensor('2', [3, 2], 24)]);
const MODEL = variable('model', [group('0-3', 'Linear', { parameters: 2080, bytes: 8320 })]);
const LOSS = variable('loss', [
  group('0-3', 'float', { values: values('0.5', '1.5', '2.5', '3.5') })
]);
const ONLY = variable('only', [group('1', 'str', { length: 4, values: values("'here'") })], {
  ...{ differs: true, missing: '0,2-3' }
});
const WORDS = variable('words', [group('0-3', 'list', { length: 3 })]);

test('a variable is told in a few words', () => {
  const short = one => shortText(one.groups[0]);
  assert.equal(short(X), '[3, 1] float32');
  assert.equal(short(MODEL), 'Linear, 2,080 parameters');
  assert.equal(short(LOSS), '0.5, 1.5, 2.5, …');
  assert.equal(short(ONLY), "'here'");
  assert.equal(short(WORDS), 'list, length 3');
  assert.equal(shortText(group('0', 'a.b.Thing')), 'Thing');
});

test('ranks that have it otherwise are named', () => {
  assert.deepEqual(differences(X), ['rank 2: [3, 2] float32']);
  assert.deepEqual(differences(ONLY), ['not on ranks 0,2-3']);
  assert.deepEqual(differences({ ...X, more: 3 }), ['rank 2: [3, 2] float32', 'and 3 more kinds']);
  assert.deepEqual(differences(LOSS), []);
  assert.deepEqual(linesOf(values('cpu')), ['cpu']);
  assert.deepEqual(linesOf(values('1 to 7', '1 NaN')), ['rank 0: 1 to 7', 'rank 1: 1 NaN']);
});

test('the list is filtered by words, and sorted by what takes most', () => {
  const all = [LOSS, MODEL, ONLY, X];
  const names = (text, order = 'name') => chosen(all, text, order).map(one => one.name);
  assert.deepEqual(names(''), ['loss', 'model', 'only', 'x']);
  assert.deepEqual(names('', 'memory'), ['model', 'x', 'loss', 'only']);
  assert.deepEqual(names('differs FLOAT32'), ['x']);
  assert.deepEqual(names('[3, 2]'), ['x']);
  assert.deepEqual(names('nothing'), []);
  assert.deepEqual([memoryOf(X), memoryOf(LOSS)], [24, null]);
  assert.equal(
    [12, 4000, 3 << 20, 80 * 2 ** 30].map(sizeText).join(),
    '12 B,3.9 KB,3.0 MB,80.0 GB'
  );
});

test('the first rank with a tensor is the one that is opened', () => {
  assert.equal(rankToOpen(X), 0);
  assert.equal(rankToOpen(variable('y', [group('0', 'float'), tensor('2-3', [2], 8)])), 2);
  assert.equal(rankToOpen(MODEL), null);
});

const told = (variables, rest) => ({
  ...{ size: 4, left_out: 0, no_answer: '', variables },
  ...rest
});

test('the note says how much is shown, when it was, and what is missing', () => {
  const at = new Date(2026, 0, 1, 12, 3, 10);
  assert.equal(noteText(told([X, MODEL]), 2, at), '2 variables, 1 differs, at 12:03:10');
  assert.equal(
    noteText(told([X], { left_out: 7, no_answer: '2' }), 0, at),
    '0 of 1 variable, 1 differs, at 12:03:10, 7 older ones left out, ' +
      'no answer of rank 2, with what was known before'
  );
});

test('of ranks that do not answer stays what they had', () => {
  const before = told([X, ONLY, LOSS]);
  const now = told([variable('x', [tensor('0-1', [3, 1], 12)])], { no_answer: '2-3' });
  const { variables } = withLast(now, before);
  assert.deepEqual(
    variables.map(one => [one.name, one.groups.map(each => each.ranks)]),
    [
      ['loss', ['2-3']],
      ['x', ['0-1', '3', '2']]
    ]
  );
  const [second, third] = differences(variables[1]);
  assert.equal(second, 'rank 3, before: [3, 1] float32');
  assert.equal(third, 'rank 2, before: [3, 2] float32');
  assert.deepEqual(differences(variables[0]), ['ranks 2-3, before: 2.5, 3.5']);
  assert.deepEqual(linesOf(variables[0].groups[0].values), ['rank 2: 2.5', 'rank 3: 3.5']);
  assert.equal(withLast(before, now), before);
  assert.equal(withLast(now, null), now);
});

test('pages of rows and columns end where the tensor does', () => {
  assert.deepEqual([turned(0, 1, 200, 450), turned(400, 1, 200, 450)], [200, null]);
  assert.deepEqual([turned(150, -1, 200, 450), turned(0, -1, 200, 450)], [0, null]);
  assert.deepEqual([typed('7', 5), typed('-1', 5), typed('', 5), typed('3', 0)], [4, 0, 0, 0]);
  assert.deepEqual(planeOf([2, 30, 4]), { rows: 30, columns: 4 });
  assert.deepEqual(planeOf([7]), { rows: 1, columns: 7 });
  assert.deepEqual(planeOf([]), { rows: 1, columns: 1 });
});

const LOCAL = { shape: [2, 1000, 64], dtype: 'float32', device: 'cuda:0', whole: null };

test('a window says where it is', () => {
  const numbers = Array.from({ length: 200 }, () => Array(50).fill('0'));
  const window = { ...LOCAL, indices: [1], row: 200, column: 0, numbers };
  assert.equal(windowText(window), 'rows 200-399 of 1,000, columns 0-49 of 64');
  assert.equal(windowText({ ...window, numbers: [['0']] }), 'row 200 of 1,000, column 0 of 64');
  assert.equal(windowText({ ...window, shape: [64], numbers: [['0', '1']] }), 'columns 0-1 of 64');
  assert.equal(windowText({ ...window, numbers: [] }), 'empty');
  assert.equal(headText(LOCAL), '[2, 1000, 64] float32 on cuda:0');
  assert.equal(
    headText({ ...LOCAL, whole: [8, 1000, 64] }),
    '[2, 1000, 64] float32 on cuda:0: the part on this rank of [8, 1000, 64]'
  );
  assert.deepEqual(['nan', '-inf', '0.5'].map(isOdd), [true, true, false]);
});

test('a picture goes from dark to bright, and NaN has a colour of its own', () => {
  const light = dot =>
    colourOf(dot).reduce((sum, part, i) => sum + part * [0.21, 0.72, 0.07][i], 0);
  const all = Array.from({ length: 255 }, (_, dot) => light(dot));
  assert.ok(all.every((one, i) => i < 8 || one > all[i - 8]));
  assert.deepEqual(colourOf(0), [68, 1, 84]);
  assert.deepEqual(colourOf(254), [253, 231, 37]);
  assert.deepEqual(colourOf(255), [213, 94, 0]);
});

test('a dot tells the numbers that it is of', () => {
  const picture = {
    ...{ ...LOCAL, shape: [10, 7], indices: [], rows: 4, columns: 4, each: [3, 2] },
    ...{ least: -1, greatest: 1, dots: btoa(String.fromCharCode(0, 127, 254, 255)) }
  };
  const dots = dotsOf(picture);
  assert.deepEqual([...dots], [0, 127, 254, 255]);
  assert.equal(dotText(picture, 0, 0, dots[0]), 'rows 0-2, columns 0-1: about -1');
  assert.equal(dotText(picture, 3, 3, dots[3]), 'row 9, column 6: NaN');
  assert.equal(eachText(picture), 'each dot is the mean of 3 x 2 numbers');
  assert.equal(eachText({ ...picture, each: [1, 1] }), 'each dot is one number');
  assert.deepEqual([scaleOf(picture, 800, 248), scaleOf(picture, 10, 10)], [24, 1]);
  assert.deepEqual([0.52341, 1.2e-7, 12345].map(shortNumber), ['0.5234', '1.2e-7', '12350']);
});
