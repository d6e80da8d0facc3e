// One client of the kernel: it greets, asks, and finds its way back. Time is the test's own.

import assert from 'node:assert/strict';
import { beforeEach, mock, test } from 'node:test';

import { Connection } from '../../monarch_nb/notebook/view/front/data/connection.js';

class FakeTransport {
  sent = [];
  listeners = new Set();

  send(message) {
    this.sent.push(JSON.parse(JSON.stringify(message)));
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell(message) {
    for (const listener of this.listeners) listener({ v: 1, ...message });
  }

  of(type) {
    return this.sent.filter(message => message.type === type);
  }
}

let now = 0;

beforeEach(() => {
  now = 0;
  mock.restoreAll();
  mock.timers.reset();
  mock.timers.enable({ apis: ['setTimeout', 'setInterval'] });
  mock.method(performance, 'now', () => now);
});

function wait(ms) {
  for (let passed = 0; passed < ms; passed += 100) {
    now += 100;
    mock.timers.tick(100);
  }
}

function opened(options = { mesh: 'train' }) {
  const transport = new FakeTransport();
  const connection = new Connection(transport, options);
  const states = [];
  connection.onState(() => states.push(connection.state));
  connection.open();
  const answer = (n = 1) =>
    transport.tell({
      type: 'state',
      to: connection.name,
      n,
      at: 1,
      seconds: 0,
      hosts: [],
      meshes: {},
      cell: null
    });
  return { transport, connection, states, answer };
}

function live(options) {
  const all = opened(options);
  all.answer();
  return all;
}

test('it greets, and is live when its own state has come', () => {
  const { transport, connection, answer } = opened();
  const { from, ...hello } = transport.sent[0];
  assert.deepEqual(hello, {
    v: 1,
    type: 'hello',
    period_ms: 100,
    parts: ['strips', 'curves', 'failures', 'actors'],
    mesh: 'train'
  });
  assert.match(from, /^[0-9a-f]{16}$/);
  transport.tell({
    type: 'state',
    to: 'another view',
    n: 1,
    at: 1,
    seconds: 0,
    hosts: [],
    meshes: {},
    cell: null
  });
  assert.equal(connection.state, 'opening');
  answer();
  assert.equal(connection.state, 'live');
});

test('it pings every ten seconds, and greets instead when nothing has been heard', () => {
  const { transport, answer, connection } = live();
  wait(10_000);
  assert.equal(transport.of('ping').length, 1);
  assert.equal(transport.of('hello').length, 1);
  wait(10_000);
  assert.equal(transport.of('hello').length, 2);
  wait(10_000);
  assert.equal(connection.state, 'lost');
  assert.match(connection.why, /does not answer/);
  answer(9);
  assert.equal(connection.state, 'live');
});

test('a missed update is made good by one greeting', () => {
  const { transport, connection } = live();
  const delta = (base, n) => transport.tell({ type: 'delta', base, n, at: 2 });
  delta(1, 2);
  assert.equal(connection.model.n, 2);
  delta(3, 4);
  delta(4, 5);
  assert.equal(transport.of('hello').length, 2);
});

test('a question has its own answer', async () => {
  const { transport, connection } = live();
  const [first, second] = [
    connection.ask('rank', { mesh: 'train', rank: 3 }),
    connection.do('heal', { mesh: 'train' })
  ];
  const [ask, act] = [transport.of('ask')[0], transport.of('do')[0]];
  assert.deepEqual([ask.what, ask.rank, act.what], ['rank', 3, 'heal']);
  const answer = { type: 'answer', to: connection.name };
  transport.tell({ ...answer, id: act.id, ok: false, error: 'nothing has died' });
  transport.tell({ ...answer, to: 'another', id: ask.id, ok: true, value: 'not mine' });
  transport.tell({ ...answer, id: ask.id, ok: true, value: { rank: 3 } });
  assert.deepEqual(await first, { rank: 3 });
  await assert.rejects(second, /^Error: nothing has died$/);
});

test('a question without an answer ends with a sentence', async () => {
  const { connection } = live();
  const asked = connection.ask('stacks', {});
  wait(20_000);
  await assert.rejects(asked, /has not answered "stacks" in 20 s; it may be busy/);
});

test('a lost transport ends actions, and questions are asked again over the next', async () => {
  const { transport, connection } = live();
  const [asked, done] = [
    connection.ask('rank', { rank: 1 }),
    connection.do('restart', { ranks: '1' })
  ];
  connection.lost('the kernel was restarted');
  await assert.rejects(done, /the kernel was restarted: no answer came; look at the mesh/);
  await assert.rejects(connection.do('kill', {}), /the kernel was restarted/);
  const next = new FakeTransport();
  connection.reopen(next);
  assert.equal(connection.state, 'opening');
  assert.equal(transport.listeners.size, 0);
  assert.equal(next.of('ask')[0].id, transport.of('ask')[0].id);
  assert.equal(next.of('do').length, 0);
  next.tell({ type: 'answer', to: connection.name, id: next.of('ask')[0].id, ok: true, value: 7 });
  assert.equal(await asked, 7);
});

test('it goes at the pace of its most eager viewer, and rests without any', () => {
  const { transport, connection, answer } = live();
  const [a, b] = [{}, {}];
  connection.pace(a, 1000);
  connection.pace(b, 100);
  connection.pace(b, null);
  assert.deepEqual(
    transport.of('hello').map(hello => hello.period_ms),
    [100, 1000, 100, 1000]
  );
  connection.pace(a, null);
  assert.equal(transport.of('bye').length, 1);
  wait(60_000);
  assert.equal(transport.of('ping').length, 0);
  transport.tell({ type: 'delta', base: 40, n: 41, at: 2 }); // for other views
  assert.equal(transport.of('hello').length, 4);
  connection.reopen();
  assert.equal(transport.of('hello').length, 4);
  connection.pace(a, 100);
  answer(50);
  assert.equal(connection.model.n, 50);
});

test('lines are followed from where the reader is, also over a new transport', () => {
  const { transport, connection } = live();
  const seen = [];
  const undo = connection.follow('train', '0-3', 10, lines =>
    seen.push(...lines.map(([seq]) => seq))
  );
  const line = (seq, mesh, rank) => [seq, mesh, rank, 'stdout', '', 'text', 0];
  transport.tell({
    type: 'log',
    skipped: 0,
    lines: [
      line(9, 'train', 0),
      line(11, 'train', 0),
      line(12, 'other', 0),
      line(13, 'train', 7),
      line(14, 'train', 3)
    ]
  });
  assert.deepEqual(seen, [11, 14]);
  connection.reopen();
  assert.deepEqual(
    transport.of('follow').map(({ on, after }) => [on, after]),
    [
      [true, 10],
      [true, 14]
    ]
  );
  undo();
  assert.equal(transport.of('follow')[2].on, false);
});

test('what cannot be read is told, and a closed view leaves nothing behind', async () => {
  const { transport, connection } = live();
  transport.tell({ v: 2, type: 'state' });
  assert.equal(connection.state, 'lost');
  assert.match(connection.why, /reload the page/);
  const asked = connection.ask('rank', {});
  connection.close();
  await assert.rejects(asked, /closed/);
  assert.equal(transport.listeners.size, 0);
  assert.equal(transport.of('bye').length, 1);
  const sent = transport.sent.length;
  wait(60_000);
  assert.equal(transport.sent.length, sent);
});
