// Which kernels of a server have meshes, what is said of them, and comms of our own.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { OwnComm } from '../../labextension/lib/labextension/src/kernel/owncomm.js';
import { kernelsOf } from '../../labextension/lib/labextension/src/server/kernels.js';
import { toldOf } from '../../labextension/lib/labextension/src/server/told.js';
import { Mesh } from '../../monarch_nb/notebook/view/front/data/model.js';

const session = (path, id, name = 'monarch', execution_state = 'idle') => ({
  path,
  name: path.split('/').pop(),
  kernel: id && { id, name, execution_state }
});

test('kernels of ours are listed once, in the order of their notebooks', () => {
  const sessions = [
    session('runs/train.ipynb', 'k2', 'monarch', 'busy'),
    session('plain.ipynb', 'k3', 'python3'),
    session('eval.ipynb', 'k1'),
    session('ended.ipynb', null),
    session('console', 'k2')
  ];
  const found = kernelsOf(sessions, ({ name }) => name === 'monarch');
  assert.deepEqual(found, [
    { id: 'k1', spec: 'monarch', name: 'eval.ipynb', path: 'eval.ipynb', isBusy: false },
    { id: 'k2', spec: 'monarch', name: 'train.ipynb', path: 'runs/train.ipynb', isBusy: true }
  ]);
});

test('each mesh is told with the state that most needs a look, and a kernel that tells none', () => {
  const kernel = { id: 'k1', spec: 'monarch', name: 'a.ipynb', path: 'a.ipynb', isBusy: true };
  const said = (link, busy = true) =>
    toldOf({ ...kernel, isBusy: busy }, link).map(({ mesh, said, state }) => [mesh, said, state]);
  const linkOf = (meshes, n = 1, state = 'live') => ({
    phase: 'open',
    connection: { state, model: { n, meshes: new Map(meshes.map(mesh => [mesh.name, mesh])) } }
  });
  const [one, two, gone] = ['one', 'two', 'gone'].map(
    (name, i) => new Mesh(name, ['gpus'], [i + 1])
  );
  one.states = ['idle'];
  two.states = ['busy', 'failed'];
  gone.ended = 'stopped';
  assert.deepEqual(said(linkOf([one, two, gone])), [
    ['one', '1 rank, idle', 'idle'],
    ['two', '2 ranks, failed', 'failed']
  ]);
  assert.deepEqual(said(linkOf([gone])), [['', 'no mesh', '']]);
  assert.deepEqual(said(null), [['', 'busy', '']]);
  assert.deepEqual(said(null, false), [['', 'asking…', '']]);
  assert.deepEqual(said(linkOf([], -1, 'lost'), false), [['', 'no answer', '']]);
});

test('while a kernel is asked anew, what it has told stays', () => {
  const kernel = { id: 'k1', spec: 'monarch', name: 'a.ipynb', path: 'a.ipynb', isBusy: false };
  const before = [{ kernel, mesh: 'one', said: '1 rank, idle', state: 'idle' }];
  const renamed = { ...kernel, name: 'b.ipynb' };
  const told = (link, of = before) => toldOf(renamed, link, of);
  const linkOf = (phase, state, n = -1) => ({
    phase,
    connection: state && { state, model: { n, meshes: new Map() } }
  });
  const kept = [{ ...before[0], kernel: renamed }];
  assert.deepEqual(told(null), kept);
  assert.deepEqual(told(linkOf('opening')), kept);
  assert.deepEqual(told(linkOf('open', 'live')), kept);
  const words = link => told(link).map(({ mesh, said }) => [mesh, said]);
  assert.deepEqual(words(linkOf('gone')), [['', 'asking…']]);
  assert.deepEqual(words(linkOf('open', 'lost')), [['', 'no answer']]);
  assert.deepEqual(words(linkOf('open', 'live', 1)), [['', 'no mesh']]);
  assert.deepEqual(
    told(null, [{ kernel, mesh: '', said: 'no mesh', state: '' }]).map(({ said }) => said),
    ['asking…']
  );
});

class FakeConnection {
  isDisposed = false;
  username = '';
  clientId = 'page';
  sent = [];
  slots = new Set();
  iopubMessage = {
    connect: slot => this.slots.add(slot),
    disconnect: slot => this.slots.delete(slot)
  };
  sendShellMessage({ header, content }) {
    this.sent.push([header.msg_type, header.subshell_id, content.data]);
    return { done: Promise.resolve(), content };
  }
  requestDeleteSubshell({ subshell_id }) {
    this.sent.push(['delete', subshell_id]);
  }
}

test('a comm of our own hears what is for it, and leaves nothing in the kernel', async () => {
  const kernel = new FakeConnection();
  let id = '';
  const send = kernel.sendShellMessage;
  kernel.sendShellMessage = message => {
    id = message.content.comm_id;
    return send.call(kernel, message);
  };
  const comm = new OwnComm(kernel, 'monarch_nb.mesh');
  const heard = [];
  comm.onMsg = ({ content }) => heard.push(content.data);
  comm.subshell = 's1';
  comm.open({});
  comm.send({ type: 'hello' });
  for (const [comm_id, msg_type] of [
    ['another', 'comm_msg'],
    [id, 'comm_msg'],
    [undefined, 'status']
  ]) {
    for (const slot of kernel.slots)
      slot(kernel, { header: { msg_type }, content: { comm_id, data: 1 } });
  }
  assert.deepEqual(heard, [1]);
  comm.dispose();
  comm.dispose();
  await new Promise(resolve => setImmediate(resolve));
  assert.equal(kernel.slots.size, 0);
  assert.deepEqual(kernel.sent, [
    ['comm_open', 's1', {}],
    ['comm_msg', 's1', { type: 'hello' }],
    ['comm_close', 's1', {}],
    ['delete', 's1']
  ]);
});
