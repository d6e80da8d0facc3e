// A mesh that is kept without its kernel.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { stateOf } from '../../monarch_nb/notebook/view/front/data/keeping.js';
import { Model } from '../../monarch_nb/notebook/view/front/data/model.js';
import { parse } from '../../monarch_nb/notebook/view/front/data/protocol.js';

const PART = {
  labels: ['hosts', 'gpus'],
  sizes: [2, 2],
  ended: null,
  hosts: [
    ['0-1', 0],
    ['2-3', 1]
  ],
  pids: [11, 12, 13, null],
  ranks: [
    ['0,3', 'idle', '', '', [5, 5]],
    ['1', 'busy', 'cell In[3]', '', 700],
    ['2', 'exited', '', 'killed by signal 9', 800]
  ],
  strips: ['..99', '..9c', '..ex', '..00'],
  failures: [{ id: 1, ranks: '2', headline: 'KeyError', where: 'x', what: 'y', at: 700, count: 1 }],
  curves: { loss: { from: 0, points: [[0, 1, 1, 1, 4]] } },
  actors: []
};

function known(part = PART) {
  const model = new Model(() => 0);
  const message = {
    ...{ v: 1, type: 'state', to: '', n: 3, at: 1000, seconds: 9, cell: null },
    hosts: [
      { name: 'a', ended: null },
      { name: 'b', ended: null }
    ],
    meshes: { train: part, other: { ...PART } }
  };
  model.apply(parse(message));
  return model;
}

test('a mesh that is kept is the same when it is read again', () => {
  const model = known();
  const mesh = model.meshes.get('train');
  const state = JSON.parse(JSON.stringify(stateOf(model, mesh)));
  assert.equal(parse(state), state);
  const again = new Model(() => 0);
  again.apply(state);
  assert.deepEqual([...again.meshes.keys()], ['train']);
  const found = again.meshes.get('train');
  for (const name of [
    'states',
    'whats',
    'details',
    'sinces',
    'hosts',
    'pids',
    'failures',
    'curves'
  ])
    assert.deepEqual(found[name], mesh[name], name);
  assert.equal(again.clock, 1000);
  assert.deepEqual(stateOf(again, found), stateOf(model, mesh));
  assert.deepEqual(state.meshes.train.strips, ['99', '9c', 'ex', '00']);
});

test('a mesh that has left the model can be kept still', () => {
  const model = known();
  const mesh = model.meshes.get('train');
  model.apply({ v: 1, type: 'delta', base: 3, n: 4, at: 1200, meshes: { train: null } });
  assert.equal(stateOf(model, mesh).meshes.train.failures.length, 1);
});

test('of very many ranks the seconds are not kept', () => {
  const model = known({ ...PART, sizes: [2, 150], pids: [], strips: Array(300).fill('9') });
  assert.deepEqual(stateOf(model, model.meshes.get('train')).meshes.train.strips, []);
});
