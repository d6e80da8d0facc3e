// Where ranks are drawn, what is under the pointer, where arrows lead.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  cellAt,
  cellsWithin,
  frameOf,
  labelAt,
  layOut,
  neighbour,
  selection
} from '../../monarch_nb/notebook/view/front/grid/geometry.js';

const WIDE = { width: 1000, height: 420 };
const NARROW = { width: 280, height: 420 };

function laid(labels, sizes, box = WIDE, ranks = null, zoom = 1) {
  const frame = frameOf(labels, sizes, ranks);
  return { frame, layout: layOut(frame, box, zoom) };
}

function overlaps(layout) {
  const places = new Set();
  for (let i = 0; i < layout.x.length; i++) places.add(`${layout.x[i]} ${layout.y[i]}`);
  return places.size !== layout.x.length;
}

test('no two ranks share a place, and all are inside, whatever the mesh', () => {
  for (const sizes of [
    [1],
    [7],
    [8],
    [16],
    [17],
    [100],
    [1024],
    [2, 4],
    [8, 8],
    [128, 8],
    [3, 200],
    [8, 16, 8],
    [2, 2, 2, 2],
    [4, 4, 8, 8]
  ]) {
    for (const box of [WIDE, NARROW]) {
      for (const zoom of [1, 2]) {
        const { layout } = laid(
          sizes.map((_, axis) => `axis${axis}`),
          sizes,
          box,
          null,
          zoom
        );
        assert.ok(!overlaps(layout), `${sizes}`);
        for (let i = 0; i < layout.x.length; i++) {
          assert.ok(
            layout.x[i] >= 0 && layout.x[i] + layout.cellWidth <= layout.width + 1,
            `${sizes}`
          );
          assert.ok(layout.y[i] + layout.cellHeight <= layout.height + 1, `${sizes}`);
        }
        if (zoom === 1)
          assert.ok(layout.width <= box.width, `${sizes} in ${box.width}: ${layout.width}`);
      }
    }
  }
});

test('65 536 ranks are laid out soon, whatever their axes', () => {
  for (const sizes of [[65_536], [256, 256], [65_536, 1], [1, 65_536], Array(16).fill(2)]) {
    const began = performance.now();
    const { layout } = laid(
      sizes.map((_, axis) => `axis${axis}`),
      sizes
    );
    assert.ok(performance.now() - began < 2000, `${sizes}: ${performance.now() - began} ms`);
    assert.equal(layout.x.length, 65_536);
    for (const kind of new Set(layout.labels.map(label => label.kind))) {
      const members = layout.labels
        .filter(label => label.kind === kind)
        .flatMap(label => label.members);
      assert.ok(members.length >= 65_536, `${sizes}, ${kind}`);
      assert.equal(new Set(members).size, 65_536, `${sizes}, ${kind}`);
    }
  }
});

test('a list of ranks holds each once, and none that is not there', () => {
  assert.deepEqual(frameOf(['gpus'], [4], [3, 1, 1, -1, 9, 0.5]).ranks, [1, 3]);
});

test('the last axis goes across, the one before it down', () => {
  const { layout } = laid(['hosts', 'gpus'], [4, 8]);
  assert.equal(new Set(layout.y.slice(0, 8)).size, 1);
  assert.equal(layout.x[0], layout.x[8]);
  assert.ok(layout.y[8] > layout.y[0]);
});

test('few ranks have room for words, many are small', () => {
  assert.ok(laid(['gpus'], [8]).layout.roomy);
  assert.ok(laid(['gpus'], [8], NARROW).layout.roomy);
  assert.ok(laid(['gpus'], [16], NARROW).layout.roomy);
  assert.ok(!laid(['gpus'], [64]).layout.roomy);
  assert.ok(laid(['hosts', 'gpus'], [128, 8]).layout.height <= WIDE.height);
});

test('a slice keeps its coordinates; a list of ranks that is none is one line', () => {
  const slice = frameOf(['hosts', 'gpus'], [2, 4], [1, 3, 5, 7]);
  assert.deepEqual(slice, {
    labels: ['hosts', 'gpus'],
    axes: [
      [0, 1],
      [1, 3]
    ],
    ranks: [1, 3, 5, 7]
  });
  assert.deepEqual(frameOf(['hosts', 'gpus'], [2, 4], [0, 5]), {
    labels: ['ranks'],
    axes: [[0, 5]],
    ranks: [0, 5]
  });
  assert.deepEqual(frameOf(['gpus'], [4], [3, 99]).ranks, [3]);
  assert.equal(layOut(frameOf(['gpus'], [4], []), WIDE).x.length, 0);
  assert.equal(layOut(frameOf([], [], null), WIDE).x.length, 1);
});

test('the pointer finds each cell, the nearer one between two, and nothing beside them', () => {
  const { layout } = laid(['hosts', 'gpus'], [8, 8]);
  for (let i = 0; i < 64; i++) assert.equal(cellAt(layout, layout.x[i] + 3, layout.y[i] + 3), i);
  const [right, bottom] = [layout.x[9] + layout.cellWidth, layout.y[9] + layout.cellHeight];
  assert.equal(cellAt(layout, right + 0.4, bottom - 1), 9);
  assert.equal(cellAt(layout, layout.x[10] - 0.4, bottom - 1), 10);
  assert.equal(cellAt(layout, right - 1, layout.y[17] - 0.4), 17);
  assert.equal(cellAt(layout, layout.x[63] + layout.pitchX, layout.y[63]), -1);
  assert.equal(cellAt(layout, -5, -5), -1);
});

test('a rectangle selects what it touches, drawn from any corner', () => {
  const { layout } = laid(['hosts', 'gpus'], [4, 8]);
  const from = { x: layout.x[9] + 2, y: layout.y[9] + 2 };
  const to = { x: layout.x[18] + 2, y: layout.y[18] + 2 };
  assert.deepEqual(cellsWithin(layout, from, to), [9, 10, 17, 18]);
  assert.deepEqual(cellsWithin(layout, to, from), [9, 10, 17, 18]);
});

test('lines that do not fit below each other stand in parts of equal height, each with its labels', () => {
  const { layout } = laid(['hosts', 'gpus'], [32, 8], NARROW);
  const tops = new Set(layout.x.filter((_, i) => i % 8 === 0));
  assert.equal(tops.size, 2);
  assert.equal(layout.y[8 * 16], layout.y[0]);
  assert.equal(
    layout.labels.filter(({ kind, text }) => kind === 'column' && text === '0').length,
    2
  );
});

test('labels stand for their row, column or block', () => {
  const { layout } = laid(['pods', 'hosts', 'gpus'], [2, 3, 4]);
  const of = (kind, text) =>
    layout.labels.find(label => label.kind === kind && label.text === text);
  assert.deepEqual(of('row', '1').members, [4, 5, 6, 7]);
  assert.deepEqual(of('column', '2').members, [2, 6, 10]);
  assert.deepEqual(of('block', 'pods 1').members, [12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23]);
  for (const label of layout.labels) assert.equal(labelAt(layout, label.x, label.y), label);
  assert.equal(labelAt(layout, layout.x[5] + 5, layout.y[5] + 5), undefined);
});

test('arrows lead to the next cell and stop at the border', () => {
  const { layout } = laid(['hosts', 'gpus'], [4, 8]);
  assert.equal(neighbour(layout, 9, 1, 0), 10);
  assert.equal(neighbour(layout, 9, -1, 0), 8);
  assert.equal(neighbour(layout, 9, 0, 1), 17);
  assert.equal(neighbour(layout, 9, 0, -1), 1);
  assert.equal(neighbour(layout, 8, -1, 0), 8);
  assert.equal(neighbour(layout, 1, 0, -1), 1);
});

test('every rank is reached by arrows alone', () => {
  for (const sizes of [[8], [100], [4, 8], [8, 16, 8]]) {
    const { layout } = laid(sizes.map(String), sizes, NARROW);
    const reached = new Set([0]);
    for (const index of reached) {
      for (const [dx, dy] of [
        [1, 0],
        [-1, 0],
        [0, 1],
        [0, -1]
      ])
        reached.add(neighbour(layout, index, dx, dy));
    }
    assert.equal(reached.size, layout.x.length, `${sizes}`);
  }
});

test('a gesture replaces, extends or turns the selection over', () => {
  const now = new Set([1, 2]);
  assert.deepEqual([...selection(now, [5], 'set')], [5]);
  assert.deepEqual([...selection(now, [2, 5], 'add')], [1, 2, 5]);
  assert.deepEqual([...selection(now, [2], 'toggle')], [1]);
  assert.deepEqual([...selection(now, [2, 5], 'toggle')], [1, 2, 5]);
  assert.deepEqual([...now], [1, 2]);
});
