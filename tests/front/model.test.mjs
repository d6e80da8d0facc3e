// The picture of the meshes that the page keeps.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Model } from '../../monarch_nb/notebook/view/front/data/model.js';
import {
  FoldedStrips,
  letterText,
  Strips
} from '../../monarch_nb/notebook/view/front/data/strips.js';

const RANKS = [
  ['0-5,7', 'busy', 'cell In[3]', '', 1000],
  ['6', 'failed', 'cell In[3]', 'ZeroDivisionError', [2000]]
];

function state(part = {}, more = {}) {
  const mesh = { labels: ['hosts', 'gpus'], sizes: [2, 4], ended: null, ranks: RANKS, ...part };
  return {
    v: 1,
    type: 'state',
    to: 'a',
    n: 5,
    at: 4000,
    seconds: 4,
    hosts: [],
    meshes: { train: mesh },
    cell: null,
    ...more
  };
}

function delta(part, more = {}) {
  return { v: 1, type: 'delta', base: 5, n: 6, at: 4100, meshes: { train: part }, ...more };
}

function known(part) {
  let now = 0;
  const model = new Model(() => now);
  assert.equal(model.apply(state(part)), 'ok');
  return { model, mesh: model.meshes.get('train'), wait: ms => (now += ms) };
}

test('a state tells everything of each rank', () => {
  const { mesh } = known({
    hosts: [
      ['0-3', 0],
      ['4-7', 1]
    ],
    pids: [10, 11, 12, 13, 14, 15, null, 17]
  });
  assert.equal(mesh.size, 8);
  assert.equal(mesh.state(6), 'failed');
  assert.equal(mesh.detail(6), 'ZeroDivisionError');
  assert.equal(mesh.what(0), 'cell In[3]');
  assert.deepEqual([mesh.since(7), mesh.since(6)], [1000, 2000]);
  assert.deepEqual([mesh.host(3), mesh.host(4)], [0, 1]);
  assert.deepEqual([mesh.pid(5), mesh.pid(6)], [15, null]);
  assert.deepEqual(mesh.coords(6), [1, 2]);
  assert.deepEqual(mesh.counts(), { busy: 7, failed: 1 });
  assert.equal(mesh.summary(), '8 ranks: 7 busy, 1 failed');
  assert.equal(mesh.summary([6]), '1 rank: 1 failed');
  assert.equal(mesh.summary([]), '0 ranks');
});

test('a delta changes only what it names', () => {
  const { model, mesh } = known();
  const changes = [];
  model.onChange(change => changes.push(change));
  assert.equal(model.apply(delta({ ranks: [['1-2', 'idle', '', '', [10, 20]]] })), 'ok');
  assert.equal(mesh.summary(), '8 ranks: 5 busy, 2 idle, 1 failed');
  assert.equal(mesh.since(2), 20);
  assert.deepEqual([...changes[0].meshes.get('train').ranks], [1, 2]);
  assert.equal(changes[0].all, false);
});

test('a delta that builds on something else is stale; an old one is ignored', () => {
  const { model, mesh } = known();
  const idle = { ranks: [['0-7', 'idle', '', '', 1]] };
  assert.equal(model.apply(delta(idle, { base: 6, n: 7 })), 'stale');
  assert.equal(model.apply(delta(idle, { base: 4, n: 5 })), 'ignored');
  assert.equal(mesh.state(0), 'busy');
  assert.equal(new Model(() => 0).apply(delta(idle)), 'ignored');
});

test('a mesh that is not known needs its labels', () => {
  const { model } = known();
  const other = { labels: ['gpus'], sizes: [2], ended: null, ranks: [['0-1', 'idle', '', '', 1]] };
  assert.equal(model.apply(delta(null, { meshes: { other, train: null } })), 'ok');
  assert.deepEqual([...model.meshes.keys()], ['other']);
  assert.equal(model.apply({ ...delta({}), base: 6, n: 7, meshes: { third: {} } }), 'stale');
});

test('usage comes in columns; what is left out stays', () => {
  const { model, mesh } = known({ usage: { ranks: '0-1', cpu: [50, 60], gpu: [null, 90] } });
  model.apply(delta({ usage: { ranks: '1', cpu: [70] } }));
  assert.equal(mesh.usage(0).cpu, 50);
  assert.equal(mesh.usage(1).cpu, 70);
  assert.equal(mesh.usage(1).gpu, 90);
  assert.ok(
    Number.isNaN(mesh.usage(0).gpu) &&
      Number.isNaN(mesh.usage(5).cpu) &&
      Number.isNaN(mesh.usage(0).rss)
  );
});

test('strips grow by a letter a rank and second, and keep five minutes', () => {
  const strip = '0'.repeat(299) + '9';
  const { model, mesh } = known({ strips: new Array(8).fill(strip) });
  const letter = (rank, ago) => String.fromCharCode(mesh.strips.letter(rank, ago));
  assert.equal(mesh.strips.seconds, 4); // more letters than seconds: only those fit that there were
  assert.equal(letter(0, 0), '9');
  model.apply(delta({ strip: 'cccccccx' }, { seconds: 5 }));
  assert.deepEqual([letter(0, 0), letter(7, 0), letter(0, 1)], ['c', 'x', '9']);
  model.apply({ ...delta({ strip: '55555555' }), base: 6, n: 7, seconds: 8 });
  assert.deepEqual([letter(0, 0), letter(0, 1), letter(0, 2), letter(0, 3)], ['5', '.', '.', 'c']);
  model.apply({ ...delta({ strip: '11111111' }), base: 7, n: 8, seconds: 10_000 });
  assert.deepEqual([letter(0, 0), letter(0, 299), letter(0, 300)], ['1', '.', '.']);
});

test('ranks that share a row show the worst, or the median', () => {
  const { mesh } = known({
    strips: ['1x9e', '2591', '9c9z', '....', '....', '....', '....', '....']
  });
  const worst = ranks =>
    [3, 2, 1, 0].map(ago => String.fromCharCode(mesh.strips.worst(ranks, ago))).join('');
  assert.equal(worst([0, 1, 2]), '2x9e');
  assert.equal(worst([3, 4]), '....');
  assert.deepEqual(
    [...'059ezx.'].map(letter => letterText(letter.charCodeAt(0))),
    ['idle', 'busy 50 %', 'busy', 'raised an exception', 'silent', 'ended', 'not known']
  );
  assert.equal(worst([0]), '1x9e');
});

test('rows of many ranks are folded only as far back as anything is known', () => {
  const strips = new Strips(2);
  const rows = new FoldedStrips(strips, [[0, 1]]);
  let looks = 0;
  const worst = strips.worst.bind(strips);
  strips.worst = (...args) => worst(...args, looks++);
  strips.replace(['.9', '.9'], 300);
  rows.update();
  assert.equal(looks, 1);
  strips.replace(['', ''], 310);
  rows.update();
  assert.equal(looks, 1);
  assert.deepEqual(
    [0, 10, 299].map(ago => String.fromCharCode(rows.letter(0, ago))),
    ['.', '9', '.']
  );
});

test('curves grow from where they are, or are replaced; a gap is stale', () => {
  const point = step => [step, step, step, step, 8];
  const { model, mesh } = known({ curves: { loss: { from: 0, points: [point(0), point(1)] } } });
  assert.equal(
    model.apply(delta({ curves: { loss: { from: 1, points: [point(1), point(2)] } } })),
    'ok'
  );
  assert.deepEqual(
    mesh.curves.get('loss').map(([step]) => step),
    [0, 1, 2]
  );
  assert.equal(
    model.apply({ ...delta({ curves: { loss: { from: 9, points: [] } } }), base: 6, n: 7 }),
    'stale'
  );
});

test('the clock goes on by itself, and never back because a message was late', () => {
  const { model, wait } = known();
  assert.equal(model.clock, 4000);
  wait(500);
  assert.equal(model.clock, 4500);
  model.apply(delta({}, { at: 4300 })); // 200 ms late
  assert.equal(model.clock, 4500);
});

test('ranks beyond the mesh, and odd values, are borne', () => {
  const { model, mesh } = known();
  model.apply(
    delta({
      ranks: [
        ['6-9999', null, null, null, null],
        ['x', 3, 4, 5, 6]
      ],
      usage: { ranks: '99', cpu: [1] },
      strip: '',
      hosts: [['0-99', 3]]
    })
  );
  assert.equal(mesh.states.length, 8);
  assert.match(mesh.summary(), /^8 ranks: 6 busy, 2 not known$/);
});

test('1 024 ranks at 10 Hz: a delta of a fifth of them costs less than a millisecond', () => {
  const model = new Model(() => 0);
  const all = {
    labels: ['hosts', 'gpus'],
    sizes: [128, 8],
    ended: null,
    ranks: [['0-1023', 'idle', '', '', 1]]
  };
  model.apply({ ...state(), n: 0, meshes: { train: all } });
  const ranks = Array.from({ length: 205 }, (_, i) => i * 5);
  const row = [ranks.join(','), 'busy', 'Trainer.step', '', ranks.map(rank => rank)];
  const times = [];
  for (let n = 0; n < 200; n++) {
    const began = performance.now();
    model.apply({ ...delta({ ranks: [row] }), base: n, n: n + 1 });
    times.push(performance.now() - began);
  }
  const median = times.sort((a, b) => a - b)[100];
  assert.ok(median < 1, `${median} ms`);
});

test('how far back anything is known is told, so that a young mesh fills its timeline', () => {
  const strips = new Strips(2);
  assert.equal(strips.known, 0);
  strips.push('55', 100);
  assert.equal(strips.known, 1);
  strips.replace(['...55', '..555'], 104);
  assert.equal(strips.known, 3);
  strips.push('99', 900);
  assert.equal(strips.known, 300);
});
