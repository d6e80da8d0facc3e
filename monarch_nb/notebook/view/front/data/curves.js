// @ts-check
// What a plot shows of curves: ranges, ticks, smoothing, the nearest points, rows of a table. Rule of the file: nothing is drawn here.

/**
 * @typedef {import("./protocol.js").CurvePoint} CurvePoint
 * @typedef {{run: number, name: string, points: CurvePoint[], earlier: boolean}} Series the curve of one run
 */

/**
 * Round values within a range, at most `count` or so.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !isFinite(raw)) return isFinite(low) ? [low] : [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find(factor => factor * power >= raw * 0.999) ?? 10);
  /** @type {number[]} */
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i <= count + 2; i++) found.push((first + i) * step || 0);
  return found.filter(value => value <= high + step * 1e-9);
}

/**
 * Powers of ten within a range, at most `count` or so; round values where there are too few.
 * @param {number} low above 0
 * @param {number} high
 * @param {number} count
 */
export function logTicks(low, high, count) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  if (last - first < 1) return ticks(low, high, count).filter(value => value > 0);
  const stride = Math.ceil((last - first + 1) / (count + 1));
  /** @type {number[]} */
  const found = [];
  for (let power = first; power <= last; power += stride) found.push(Number(`1e${power}`));
  return found;
}

/** A number in at most seven or so characters. @param {number} value */
export function numberText(value) {
  if (!isFinite(value)) return isNaN(value) ? '–' : value > 0 ? '∞' : '-∞';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace('e+', 'e');
  return `${Number(value.toPrecision(4))}`;
}

/**
 * The least and the greatest of what is finite; a little apart if they are equal.
 * @param {Iterable<number>} values
 * @returns {[number, number] | null}
 */
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return null;
  const apart = low === high ? Math.abs(low) * 0.05 || 1 : 0;
  return [low - apart, high + apart];
}

/** @param {number | null | undefined} value */
export function known(value) {
  return typeof value === 'number' ? value : NaN;
}

/**
 * An exponential mean of the values before each, as TensorBoard's; gaps stay gaps.
 * @param {(readonly [number, number])[]} points
 * @param {number} weight of what was before: 0 changes nothing, 1 is excluded
 * @returns {(readonly [number, number])[]}
 */
export function smoothed(points, weight) {
  if (!weight) return points;
  let [sum, total] = [0, 0];
  return points.map(([step, value]) => {
    if (!isFinite(value)) return [step, value];
    sum = sum * weight + value;
    total = total * weight + 1; // so that the first values are not drawn towards 0
    return [step, sum / total];
  });
}

/**
 * The point whose step is nearest.
 * @param {CurvePoint[]} points by step
 * @param {number} step
 * @returns {CurvePoint | undefined}
 */
export function nearest(points, step) {
  let [low, high] = [0, points.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1;
    else high = middle;
  }
  const [before, after] = [points[low - 1], points[low]];
  if (!before || !after) return before ?? after;
  return step - before[0] <= after[0] - step ? before : after;
}

/**
 * A range of steps, made so many times as wide around one of them; null where it shows all.
 * @param {[number, number]} range
 * @param {[number, number]} all
 * @param {number} factor
 * @param {number} centre
 * @returns {[number, number] | null}
 */
export function zoomedSteps([left, right], all, factor, centre) {
  const from = Math.max(all[0], centre - (centre - left) * factor);
  const to = Math.min(all[1], centre + (right - centre) * factor);
  if (from <= all[0] && to >= all[1]) return null;
  return to - from < 1 ? [left, right] : [from, to];
}

/**
 * What a page has of curves as CSV: where no kernel is there that has each rank's.
 * @param {Series[]} series
 */
export function csvText(series) {
  const quoted = (/** @type {string} */ text) =>
    `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const rows = series.flatMap(({ name, points }) =>
    points.map(point => [quoted(name), ...point.map(value => value ?? '')].join(','))
  );
  return ['run,step,mean,low,high,count', ...rows, ''].join('\n');
}
