// What a plot decides: smoothing, ticks of a logarithmic scale, zoom, the nearest point, CSV.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  csvText,
  logTicks,
  nearest,
  smoothed,
  zoomedSteps
} from '../../monarch_nb/notebook/view/front/data/curves.js';

test('smoothing begins at the first value, keeps gaps, and is nothing at 0', () => {
  const points = [
    [0, 4],
    [1, NaN],
    [2, 2],
    [3, 2]
  ];
  assert.equal(smoothed(points, 0), points);
  const values = smoothed(points, 0.5).map(([, value]) => value);
  assert.equal(values[0], 4);
  assert.ok(isNaN(values[1]));
  assert.ok(Math.abs(values[2] - (4 * 0.5 + 2) / 1.5) < 1e-12);
  assert.ok(values[3] > 2 && values[3] < values[2]);
});

test('ticks of a logarithmic scale are powers of ten, or round values within one', () => {
  assert.deepEqual(logTicks(0.5, 2000, 4), [1, 10, 100, 1000]);
  assert.deepEqual(logTicks(2, 8, 3), [2, 4, 6, 8]);
  assert.ok(logTicks(1e-300, 1e300, 3).length <= 5);
});

test('the nearest point is found by step', () => {
  const points = [0, 10, 20].map(step => [step, 1, 1, 1, 1]);
  assert.deepEqual(
    [-5, 4, 5, 6, 99].map(step => nearest(points, step)[0]),
    [0, 0, 0, 10, 20]
  );
  assert.equal(nearest([], 3), undefined);
});

test('a zoom stays within the steps, and one that shows all is none', () => {
  assert.deepEqual(zoomedSteps([0, 100], [0, 100], 0.5, 100), [50, 100]);
  assert.deepEqual(zoomedSteps([50, 100], [0, 200], 2, 60), [40, 140]);
  assert.equal(zoomedSteps([50, 100], [0, 100], 2, 100), null);
  assert.deepEqual(zoomedSteps([4, 5], [0, 100], 0.5, 4), [4, 5]);
});

test('CSV of a page has its points, and no formula', () => {
  const points = [
    [0, 1, 0, 2, 4],
    [1, null, null, null, 0]
  ];
  assert.equal(
    csvText([{ run: 1, name: '=a "b"', points, earlier: false }]),
    'run,step,mean,low,high,count\n"\'=a ""b""",0,1,0,2,4\n"\'=a ""b""",1,,,,0\n'
  );
});
