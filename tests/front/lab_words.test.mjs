// What users type and read in JupyterLab: sizes, slices, searches. Of the compiled extension.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Heights } from '../../labextension/lib/labextension/src/mainarea/logview.js';
import { keptText } from '../../labextension/lib/labextension/src/panel/kept.js';
import { filterRanks } from '../../labextension/lib/labextension/src/panel/ranklist.js';
import { lineOf, parseSizes } from '../../labextension/lib/labextension/src/panel/upline.js';
import {
  choicesOf,
  problemOf,
  refusal,
  remember,
  tidy
} from '../../labextension/lib/labextension/src/cells/slices.js';
import { Mesh } from '../../monarch_nb/notebook/view/front/data/model.js';

test('sizes are told as they are written', () => {
  assert.deepEqual(parseSizes('hosts=2 gpus=4'), { sizes: { hosts: 2, gpus: 4 }, ranks: 8 });
  assert.deepEqual(parseSizes(' gpus = 4 '), { sizes: { gpus: 4 }, ranks: 4 });
  assert.deepEqual(parseSizes('hosts=2, gpus=3'), { sizes: { hosts: 2, gpus: 3 }, ranks: 6 });
  assert.deepEqual(parseSizes('8'), { sizes: { gpus: 8 }, ranks: 8 });
});

test('a size that is none is answered by a sentence', () => {
  for (const text of ['', 'gpus', 'gpus=0', 'gpus=-1', 'gpus=2 gpus=3', '2 3', 'a=99999 b=99999']) {
    assert.equal(typeof parseSizes(text), 'string', text);
  }
});

const HERE = { name: '', title: '', missing: '', options: [], required: [], places: false };
const SLURM = { ...HERE, name: 'slurm', options: ['partition', 'spares'] };
const SSH = { ...HERE, name: 'ssh', places: true };
const PODS = { ...HERE, name: 'k8s', options: ['image'], required: ['image'] };
const PROFILE = { ...HERE, name: 'night run', words: '--on slurm --hosts 4 --gpus 8' };
const CHOICE = { where: HERE, hosts: '2', sizes: 'gpus=4', device: 'auto', name: '', options: [] };

test('the form writes the line that a person would type', () => {
  const line = choice => lineOf({ ...CHOICE, ...choice }).line;
  const options = [
    ['partition', 'h100'],
    ['spares', '']
  ];
  const lines = [
    [{}, '%mesh up gpus=4'],
    [
      { device: 'cpu', name: 'side', isBeside: true },
      '%mesh up gpus=4 --device cpu --name side --new'
    ],
    [{ where: SLURM, options }, '%mesh up gpus=4 --on slurm --hosts 2 --partition h100'],
    [{ where: SSH, hosts: 'node1,node2' }, '%mesh up gpus=4 --on ssh:node1,node2'],
    [{ where: SSH, hosts: "a b',c" }, `%mesh up gpus=4 --on 'ssh:a b'"'"',c'`],
    [
      { where: SLURM, options: [['partition', '-x y']] },
      "%mesh up gpus=4 --on slurm --hosts 2 '--partition=-x y'"
    ],
    [{ where: PROFILE, sizes: '' }, "%mesh up --on 'night run'"]
  ];
  for (const [choice, expected] of lines) {
    assert.equal(line(choice), expected);
    assert.equal(lineOf({ ...CHOICE, ...choice }).wrong, '');
  }
});

test('the form says what it brings up, and what is missing', () => {
  const of = choice => lineOf({ ...CHOICE, ...choice });
  assert.equal(of({}).what, '4 ranks');
  assert.equal(of({ where: SLURM }).what, '8 ranks on 2 hosts');
  assert.equal(of({ where: SSH, hosts: 'node1' }).what, '4 ranks on 1 host');
  assert.equal(of({ where: PROFILE, sizes: '' }).what, 'a mesh on night run');
  assert.equal(of({ where: PODS, options: [['image', '']] }).wrong, 'image is needed');
  assert.equal(of({ where: PODS, options: [['image', 'a:b']] }).wrong, '');
  assert.equal(of({ where: SSH, hosts: '' }).wrong, 'Name the hosts: node1,node2');
  assert.equal(of({ where: SLURM, hosts: '0' }).wrong, 'Hosts is a whole number of at least 1');
  assert.deepEqual(
    [of({ sizes: 'gpus' }).isWrong, of({ where: SSH, hosts: '' }).isWrong],
    [true, false]
  );
});

test('slices are what may stand after %%mesh, and no options', () => {
  for (const slice of [
    '',
    'all',
    '0-3',
    '0,2',
    'gpus=0:4',
    'hosts=0 gpus=::2',
    '@mesh1 0-3',
    'gpus=-1'
  ]) {
    assert.equal(problemOf(slice), '', slice);
  }
  for (const slice of ['--local', '0-3; rm', 'gpus=x', '$(ls)', '0-']) {
    assert.match(problemOf(slice), /no choice of ranks/, slice);
  }
  assert.equal(tidy('  gpus=0:4\n  hosts=1 '), 'gpus=0:4 hosts=1');
  assert.equal(tidy('all'), '');
});

test('few values of an axis are offered, many are not', () => {
  assert.deepEqual(choicesOf(['hosts', 'gpus'], [2, 1]), ['hosts=0', 'hosts=1']);
  assert.deepEqual(choicesOf(['gpus'], [512]), []);
});

test('what was chosen last comes first, once', () => {
  assert.deepEqual(remember(['a', 'b'], 'b'), ['b', 'a']);
  assert.deepEqual(remember(['a'], ''), ['a']);
  assert.equal(remember(['1', '2', '3', '4', '5', '6'], '7').length, 6);
});

test('cells that say themselves where they run, and empty ones, are refused with a sentence', () => {
  assert.equal(refusal('# comment\nx = 1'), '');
  assert.equal(refusal('%timeit 1'), '');
  assert.match(refusal('\n # only this\n'), /empty/);
  assert.match(refusal('# first\n%%mesh 0\nx'), /begins with %%mesh/);
  assert.match(refusal('%%bash\nls'), /begins with %%bash/);
  assert.match(refusal('found = %mesh status'), /begins with %mesh,/);
});

/** Eight ranks on two hosts: 3 has failed, 4-7 run `train`. */
function mesh() {
  const found = new Mesh('m', ['hosts', 'gpus'], [2, 4]);
  const change = { ranks: new Set() };
  found.takeRow(['0-2', 'idle', '', '', 0], change.ranks);
  found.takeRow(['3', 'exited', '', 'killed by SIGKILL', 0], change.ranks);
  found.takeRow(['4-7', 'busy', 'train', '', 0], change.ranks);
  return found;
}

test('ranks are found by number, state, coordinates and what they run', () => {
  const found = text => filterRanks(mesh(), text);
  assert.deepEqual(found(''), [0, 1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(found('rank 3'), [3]);
  assert.deepEqual(found('ranks 0-1, 7'), [0, 1, 7]);
  assert.deepEqual(found('failed'), [3]);
  assert.deepEqual(found('SIGKILL'), [3]);
  assert.deepEqual(found('Train 5'), [5]);
  assert.deepEqual(found('hosts=1 busy'), [4, 5, 6, 7]);
  assert.deepEqual(found('nothing'), []);
  assert.deepEqual(filterRanks(mesh(), '', 'idle'), [0, 1, 2]);
});

test('rows of a list are found by where they stand', () => {
  const heights = new Heights();
  assert.deepEqual(heights.between(0, 10), [0, 0]);
  heights.append([1, 3, 1]);
  heights.append(Array(1000).fill(1));
  assert.equal(heights.total, 1005);
  assert.deepEqual(
    [0, 1, 3, 4, 5, 5000].map(line => heights.at(line)),
    [0, 1, 1, 2, 3, 1002]
  );
  assert.deepEqual(
    [0, 1, 2].map(row => heights.start(row)),
    [0, 1, 4]
  );
  assert.deepEqual(heights.between(500, 510, 2), [496, 511]);
});

test('how long a mesh is kept, or who drives it', () => {
  const text = told => keptText({ names: ['mesh0'], ranks: 4, driven_by: null, ...told });
  assert.equal(text({ for_s: 28_800 }), '4 ranks, kept for 8 h');
  assert.equal(text({ for_s: 9_000 }), '4 ranks, kept for 2.5 h');
  assert.equal(text({ for_s: 600 }), '4 ranks, kept for 10 min');
  assert.equal(text({ for_s: 90, ranks: 1 }), '1 rank, kept for 90 s');
  assert.equal(text({ for_s: 600, driven_by: 4711 }), '4 ranks, driven by process 4711');
});
