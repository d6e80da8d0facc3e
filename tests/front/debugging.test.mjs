// A debugger's prompt and stacks as a tree: what is decided apart from the page.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Connection } from '../../monarch_nb/notebook/view/front/data/connection.js';
import { callText, stayOf, wayOf } from '../../monarch_nb/notebook/view/front/parts/flame.js';
import { completed } from '../../monarch_nb/notebook/view/front/parts/prompt.js';

const call = (ranks, name, children = []) => ({
  ranks,
  frame: { file: '/home/me/train.py', line: 41, function: name },
  children
});

test('the last word of a line is completed as far as all words agree', () => {
  assert.deepEqual(completed('p model.wei', ['model.weight', 'model.weights']), {
    text: 'p model.weight',
    words: ['model.weight', 'model.weights']
  });
  assert.equal(completed('whe', ['where']).text, 'where');
  assert.equal(completed('p len(ba', ['batch']).text, 'p len(batch');
  assert.deepEqual(completed('p zz', ['where']), { text: 'p zz', words: [] });
});

test('a call is told by its function and place, a cell by its name', () => {
  assert.equal(callText(call('0', 'step')), 'step() train.py:41');
  const cell = { file: 'Cell In[3]', line: 2, function: '<module>' };
  assert.equal(callText({ ranks: '0', frame: cell, children: [] }), 'Cell In[3]:2');
  assert.equal(callText({ ranks: '0-3', children: [] }), 'ranks 0-3');
  assert.equal(callText({ ranks: '0', thread: 'loader', children: [] }), 'loader');
});

test('where ranks part is told from where they go on together', () => {
  assert.equal(wayOf(call('0-3', 'f')), 'here');
  assert.equal(wayOf(call('0-3', 'f', [call('0-3', 'g')])), 'together');
  assert.equal(wayOf(call('0-3', 'f', [call('0-2', 'g')])), 'apart');
  assert.equal(wayOf(call('0-3', 'f', [call('0-2', 'g'), call('3', 'h')])), 'apart');
  assert.equal(stayOf(call('0-3', 'f', [call('0-1', 'g')])), 2);
});

test('a prompt hears what is said to it until it is closed', async () => {
  const sent = [];
  let tell = () => {};
  const transport = {
    send: message => sent.push(message),
    listen: listener => {
      tell = message => listener({ v: 1, ...message });
      return () => {};
    }
  };
  const connection = new Connection(transport, {});
  connection.open();
  const heard = [];
  const wish = { mesh: 'train', rank: 3, failed: false };
  const session = connection.session(wish, ({ text }) => heard.push(text));
  const opened = sent.find(({ what }) => what === 'debug');
  assert.deepEqual([opened.mesh, opened.rank, opened.failed], ['train', 3, false]);
  const said = {
    type: 'session',
    to: connection.name,
    session: opened.session,
    prompt: '',
    over: false
  };
  tell({ ...said, text: 'rank 3 at train.py:41\n' });
  tell({ ...said, text: 'of another', session: 99 });
  assert.deepEqual(heard, ['rank 3 at train.py:41\n']);
  session.do('line', 'p x').catch(() => {});
  assert.deepEqual(sent.at(-1).line, 'p x');
  session.close();
  session.close();
  tell({ ...said, text: 'too late' });
  assert.equal(heard.length, 1);
  assert.equal(sent.filter(({ what }) => what === 'leave').length, 1);
  session.opened.catch(() => {});
  connection.close();
});
