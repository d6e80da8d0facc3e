// What is said aloud of ranks: who needs a look, and not too often.

import assert from 'node:assert/strict';
import { mock, test } from 'node:test';

import { Announcer, changesText } from '../../monarch_nb/notebook/view/front/parts/announcer.js';

const ALL = [0, 1, 2, 3];

test('what concerns people is told, the worst first; what is as usual is not', () => {
  const idle = ['idle', 'idle', 'idle', 'idle'];
  assert.equal(changesText(idle, ['busy', 'busy', 'collective', 'idle'], ALL), '');
  assert.equal(changesText(idle, ['idle', 'idle', 'failed', 'busy'], ALL), 'rank 2 failed');
  assert.equal(
    changesText(idle, ['silent', 'exited', 'exited', 'failed'], ALL),
    'rank 3 failed, ranks 1-2 exited, rank 0 silent'
  );
  assert.equal(changesText(['failed', 'exited', 'idle', 'idle'], idle, ALL), 'ranks 0-1 idle');
  assert.equal(changesText(idle, ['failed', 'idle', 'idle', 'failed'], [2, 3]), 'rank 3 failed');
});

test('one sentence in five seconds, however many views there are and whatever happens', () => {
  mock.timers.enable({ apis: ['setTimeout'] });
  let now = 0;
  mock.method(performance, 'now', () => now);
  const pass = ms => {
    now += ms;
    mock.timers.tick(ms);
  };
  const mesh = { name: 'train', states: ['busy', 'busy', 'busy', 'busy'] };
  const said = [];
  let isSeen = false;
  const views = [() => isSeen, () => true, () => true].map(
    isSeen => new Announcer({ say: text => said.push(text), isSeen })
  );
  const happen = (rank, state) => {
    mesh.states[rank] = state;
    for (const view of views) view.look();
  };
  for (const view of views) view.follow(mesh, ALL);
  happen(2, 'failed');
  pass(100);
  happen(3, 'failed');
  assert.deepEqual(said, [], 'others may follow');
  pass(200);
  assert.deepEqual(said, ['train: ranks 2-3 failed']);
  happen(0, 'exited');
  pass(4000);
  happen(1, 'exited');
  happen(0, 'idle');
  assert.equal(said.length, 1);
  pass(1000);
  assert.deepEqual(said.slice(1), ['train: rank 1 exited']);
  isSeen = true;
  pass(6000);
  for (const view of views) view.dispose();
  happen(1, 'idle');
  for (const view of views) view.dispose();
  pass(6000);
  assert.equal(said.length, 2);
  mock.reset();
});
