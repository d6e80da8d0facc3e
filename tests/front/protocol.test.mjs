// What the page reads of the kernel, and ranks as runs.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  cutText,
  parse,
  runs,
  runsText
} from '../../monarch_nb/notebook/view/front/data/protocol.js';

const MESH = { labels: ['hosts', 'gpus'], sizes: [2, 4], ended: null };
const STATE = {
  v: 1,
  type: 'state',
  to: 'a',
  n: 1,
  at: 5,
  seconds: 0,
  hosts: [],
  meshes: { train: MESH },
  cell: null
};
const DELTA = { v: 1, type: 'delta', base: 1, n: 2, at: 6, meshes: { train: null } };

test('ranks are written as runs, and read again', () => {
  assert.deepEqual(runs('0-3,7'), [0, 1, 2, 3, 7]);
  assert.equal(runsText([7, 0, 1, 2, 3, 3]), '0-3,7');
  assert.equal(runsText([]), '');
  assert.deepEqual(runs(''), []);
  for (let i = 0; i < 200; i++) {
    const ranks = [...new Set(Array.from({ length: i % 30 }, (_, k) => (i * 31 + k * k * 7) % 64))];
    assert.deepEqual(
      runs(runsText(ranks)),
      ranks.sort((a, b) => a - b)
    );
  }
});

test('runs that are none, or endless, cost nothing', () => {
  assert.deepEqual(runs('x,-,4-,-4,1.5,<b>,3'), [3]);
  assert.equal(runs('0-9999999,0-9999999').length, 65_536);
});

test('good messages are passed on as they are', () => {
  for (const message of [
    STATE,
    DELTA,
    { v: 1, type: 'answer', to: 'a', id: 0, ok: true, value: 3 },
    { v: 1, type: 'error', to: 'a', error: 'no' },
    { v: 1, type: 'log', lines: [[1, 'train', 0, 'stdout', '', 'hi', 0]], skipped: 0 }
  ]) {
    assert.equal(parse(message), message);
  }
});

test('another version is told with what to do', () => {
  assert.match(parse({ ...STATE, v: 2 }), /version 2 .* this page version 1: reload the page/);
  assert.match(parse({ ...STATE, v: 0 }), /restart the kernel/);
});

test('what cannot be read is a sentence, never an exception', () => {
  const mesh = part => ({ ...STATE, meshes: { train: { ...MESH, ...part } } });
  const bad = [
    null,
    3,
    'state',
    [],
    {},
    { v: 1 },
    { v: 1, type: 'constructor' },
    { v: 1, type: 'x'.repeat(1e6) },
    { ...STATE, n: -1 },
    { ...STATE, at: 'now' },
    { ...STATE, hosts: null },
    { ...STATE, meshes: [] },
    { ...STATE, meshes: { train: null } },
    mesh({ sizes: [2] }),
    mesh({ sizes: [-1, 4] }),
    mesh({ ranks: 'all' }),
    mesh({ ranks: [3] }),
    mesh({ strips: {} }),
    mesh({ curves: { loss: 3 } }),
    mesh({ curves: { loss: null } }),
    mesh({ hosts: [3] }),
    mesh({ failures: [null] }),
    { ...DELTA, base: undefined },
    { ...DELTA, meshes: { train: 3 } },
    { ...DELTA, hosts: 'a' },
    { v: 1, type: 'answer', id: 'x', ok: true },
    { v: 1, type: 'log', lines: [3] }
  ];
  for (const message of bad) {
    const said = parse(message);
    assert.equal(typeof said, 'string', JSON.stringify(message)?.slice(0, 80));
    assert.ok(said.length < 200);
  }
});

test('what is more than a page draws is refused with a sentence', () => {
  const mesh = part => ({ ...STATE, meshes: { train: { ...MESH, ...part } } });
  const axes = count => ({ labels: Array(count).fill('a'), sizes: Array(count).fill(1) });
  const rows = Array(200).fill(['0-65535', 'busy', '', '', 0]);
  const large = { labels: ['a', 'b'], sizes: [256, 256] };
  assert.equal(typeof parse(mesh(large)), 'object');
  for (const message of [
    mesh({ sizes: [1024, 1024] }),
    mesh({ sizes: [0, 2 ** 50] }),
    { ...STATE, meshes: { one: { ...MESH, ...large }, two: MESH } },
    mesh(axes(300)),
    mesh({ ...large, ranks: rows }),
    mesh({ ...large, hosts: rows.map(([ranks]) => [ranks, 0]) }),
    mesh({ failures: Array(100).fill({ ranks: '0' }) }),
    mesh({ curves: Object.fromEntries(rows.map((_, i) => [`${i}`, { from: 0, points: [] }])) }),
    mesh({ curves: { loss: { from: 0, points: Array(2000).fill([0, 1, 1, 1, 1]) } } })
  ]) {
    assert.match(parse(message), /more than this page draws/);
  }
  assert.match(parse({ ...STATE, seconds: 2 ** 54 }), /cannot read/);
});

test('texts are cut for display', () => {
  assert.equal(cutText('abcdef', 4), 'abc…');
  assert.equal(cutText('abc', 4), 'abc');
  assert.equal(cutText(undefined, 4), '');
});

test('what only a terminal reads is not shown', () => {
  assert.equal(
    cutText('\u001b[31mred\u001b[0m\u001b]0;title\u0007 and\tso\u0000\n', 40),
    'red and\tso\n'
  );
  assert.equal(cutText('\u001b[31m'.repeat(1e6), 5), '…');
});
