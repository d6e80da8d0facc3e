// Links to kernels, over a `FakeKernel` that has of a kernel connection what links use.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Links } from '../../labextension/lib/labextension/src/kernel/links.js';

class FakeSignal {
  slots = new Set();
  connect(slot) {
    this.slots.add(slot);
  }
  disconnect(slot) {
    this.slots.delete(slot);
  }
  emit(value) {
    for (const slot of [...this.slots]) slot(null, value);
  }
}

class FakeComm {
  subshellStarted = Promise.resolve();
  sent = [];
  isDisposed = false;
  constructor(kernel) {
    this.kernel = kernel;
  }
  open() {
    if (this.isDisposed) throw new Error('Cannot open');
    this.kernel.opened += 1;
  }
  send(message) {
    this.sent.push(message);
  }
  dispose() {
    this.isDisposed = true;
  }
  hears(message) {
    this.onMsg({ content: { data: { v: 1, to: this.sent[0].from, ...message } } });
  }
}

class FakeKernel {
  id = 'k1';
  handleComms = true;
  isDisposed = false;
  supportsSubshells = true;
  disposed = new FakeSignal();
  statusChanged = new FakeSignal();
  connectionStatusChanged = new FakeSignal();
  opened = 0;
  asked = 0;
  comms = [];
  targets = new Map();

  constructor({ monarch = true, language = 'python', announced = false } = {}) {
    this.spec = Promise.resolve({ metadata: monarch ? { monarch: true } : {} });
    this.info = Promise.resolve({ language_info: { name: language } });
    this.announced = announced;
  }
  createComm() {
    const comm = new FakeComm(this);
    this.comms.push(comm);
    return comm;
  }
  registerCommTarget(name, call) {
    this.targets.set(name, call);
  }
  removeCommTarget(name) {
    this.targets.delete(name);
  }
  requestCommInfo() {
    this.asked += 1;
    const comms = this.announced ? { c: { target_name: 'monarch_nb.announce' } } : {};
    return Promise.resolve({ content: { status: 'ok', comms } });
  }
  says(...states) {
    for (const state of states) this.statusChanged.emit(state);
  }
  get comm() {
    return this.comms.at(-1);
  }
}

const STATE = { type: 'state', n: 1, at: 1, seconds: 0, hosts: [], meshes: {}, cell: null };

const links = [];

/** A link, when all that was promised has come. */
async function linkOf(t, kernel) {
  const link = new Links(1000, () => 200).of(kernel);
  links.push(link);
  t.after(() => link?.dispose());
  await settled();
  return link;
}

function settled() {
  return new Promise(resolve => setImmediate(resolve));
}

test('a Monarch kernel is asked at once, and once', async t => {
  const kernel = new FakeKernel();
  const link = await linkOf(t, kernel);
  assert.equal(link.phase, 'open');
  assert.equal(kernel.opened, 1);
  assert.deepEqual(
    kernel.comm.sent.map(({ type, period_ms }) => [type, period_ms]),
    [['hello', 1000]]
  );
  kernel.comm.hears(STATE);
  assert.equal(link.connection.state, 'live');
});

test('a plain kernel is let alone until it announces itself', async t => {
  const kernel = new FakeKernel({ monarch: false });
  const coming = linkOf(t, kernel);
  assert.equal(links.at(-1).isAsking, true);
  const link = await coming;
  assert.deepEqual([link.phase, link.isAsking], ['plain', false]);
  assert.equal(kernel.comms.length, 0);
  kernel.says('busy', 'idle');
  await settled();
  assert.equal(kernel.asked, 1);
  kernel.targets.get('monarch_nb.announce')();
  await settled();
  assert.deepEqual([link.phase, kernel.opened], ['open', 1]);
});

test('a plain kernel that has announced itself before the page came is found', async t => {
  const kernel = new FakeKernel({ monarch: false, announced: true });
  assert.equal((await linkOf(t, kernel)).phase, 'open');
});

test('kernels of other languages are not even asked', async t => {
  const kernel = new FakeKernel({ monarch: false, language: 'R' });
  const link = await linkOf(t, kernel);
  assert.deepEqual([link.phase, kernel.asked, kernel.comms.length], ['plain', 0, 0]);
});

test('after a restart the new kernel is asked when it speaks, and the old one not again', async t => {
  const kernel = new FakeKernel();
  const link = await linkOf(t, kernel);
  const before = link.connection;
  kernel.says('restarting', 'busy', 'idle');
  await settled();
  assert.deepEqual([link.phase, link.connection, kernel.opened], ['gone', null, 1]);
  assert.equal(before.state, 'lost');
  assert.equal(link.why, 'The kernel was restarted: its mesh is gone.');
  kernel.connectionStatusChanged.emit('connecting');
  kernel.connectionStatusChanged.emit('connected');
  kernel.says('starting', 'busy', 'idle');
  await settled();
  assert.deepEqual([link.phase, kernel.opened], ['open', 2]);
  assert.equal(link.why, 'The kernel was restarted: its mesh is gone.', 'until there is a mesh');
});

test('a restart by another page is noticed', async t => {
  const kernel = new FakeKernel();
  const link = await linkOf(t, kernel);
  kernel.says('starting', 'busy');
  await settled();
  assert.deepEqual([link.phase, kernel.opened], ['open', 2]);
  assert.match(link.why, /restarted/);
});

test('a lost websocket is told, and the link goes on when it is back', async t => {
  const kernel = new FakeKernel();
  const link = await linkOf(t, kernel);
  kernel.comm.hears(STATE);
  kernel.connectionStatusChanged.emit('connecting');
  assert.match(link.connection.why, /connection to the server is lost/);
  kernel.connectionStatusChanged.emit('connected');
  assert.equal(kernel.comm.sent.at(-1).type, 'hello');
  assert.equal(kernel.opened, 1);
});

test('a kernel that closes its end is not asked again by itself', async t => {
  const kernel = new FakeKernel();
  const link = await linkOf(t, kernel);
  kernel.comm.onClose();
  kernel.says('busy', 'idle');
  await settled();
  assert.deepEqual([link.phase, kernel.opened], ['gone', 1]);
});

test('a kernel that ends while it is asked leaves nothing behind', async t => {
  const kernel = new FakeKernel();
  kernel.info = new Promise(() => undefined);
  const link = await linkOf(t, kernel);
  assert.equal(link.phase, 'opening');
  kernel.says('dead');
  assert.deepEqual([link.phase, kernel.opened], ['plain', 0]);
});

test('one kernel has one link; a closed notebook takes its own away', async () => {
  const links = new Links(1000, () => 200);
  const kernel = new FakeKernel();
  const link = links.of(kernel);
  assert.equal(links.of(kernel), link);
  await settled();
  const { comm } = kernel;
  kernel.isDisposed = true;
  kernel.disposed.emit();
  assert.equal(comm.sent.at(-1).type, 'bye');
  assert.equal(links.of(kernel), null);
});

test('a connection whose comms another part of the page has gets no link', async () => {
  const kernel = new FakeKernel();
  kernel.handleComms = false;
  assert.equal(new Links(1000, () => 200).of(kernel), null);
});

test('while nobody looks at a mesh the kernel tells little, and seldom', async t => {
  const kernel = new FakeKernel();
  const { connection } = await linkOf(t, kernel);
  const view = {};
  const said = () =>
    kernel.comm.sent.map(({ type, period_ms, parts }) => [type, period_ms, parts?.length]);
  connection.pace(view, connection.period);
  connection.pace(view, null);
  const idle = ['hello', 1000, 1];
  assert.deepEqual(said(), [idle, ['hello', 200, 4], idle]);
  connection.pace(view, 1000);
  assert.deepEqual(said().at(-1), ['hello', 1000, 4], 'a slow view is told everything too');
});
