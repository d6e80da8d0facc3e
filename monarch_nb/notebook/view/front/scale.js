// @ts-check
// Round numbers beside an axis. Rule of the file: pure.

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
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++)
    found.push(i * step || 0);
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
 * @param {number[]} values
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
