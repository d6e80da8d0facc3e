// @ts-check
// How a verdict is told: a word, a shape, a colour. Rule of the file: nobody needs to see colours to read a mesh.

/**
 * @typedef {"dot" | "full" | "diamond" | "dashed" | "bars" | "triangle" | "hollow" | "bang" | "cross"} Shape
 * @typedef {{word: string, shape: Shape, colour: string}} Mark `colour` names a CSS variable, `--mnb-<colour>`
 */

/** @type {Record<string, Mark>} in the order of summaries and legends */
const MARKS = {
  busy: { word: 'busy', shape: 'full', colour: 'busy' },
  collective: { word: 'in a collective', shape: 'diamond', colour: 'collective' },
  idle: { word: 'idle', shape: 'dot', colour: 'idle' },
  starting: { word: 'starting', shape: 'dashed', colour: 'grey' },
  paused: { word: 'paused', shape: 'bars', colour: 'paused' },
  silent: { word: 'silent', shape: 'triangle', colour: 'silent' },
  leaving: { word: 'leaving', shape: 'hollow', colour: 'grey' },
  stopped: { word: 'stopped', shape: 'hollow', colour: 'grey' },
  failed: { word: 'failed', shape: 'bang', colour: 'dead' },
  exited: { word: 'exited', shape: 'cross', colour: 'dead' },
  unreachable: { word: 'unreachable', shape: 'cross', colour: 'dead' }
};

/** @type {Mark} what a newer kernel may say */
const UNKNOWN = { word: 'not known', shape: 'dashed', colour: 'grey' };

/** All verdicts, in the order of summaries. */
export function verdictNames() {
  return Object.keys(MARKS);
}

/** @param {string} verdict @returns {Mark} */
export function markOf(verdict) {
  return Object.hasOwn(MARKS, verdict) ? MARKS[verdict] : UNKNOWN;
}

/** Whether a rank of this verdict runs something for which a time is worth telling. @param {string} verdict */
export function isWorking(verdict) {
  return verdict === 'busy' || verdict === 'collective' || verdict === 'paused';
}

/** Whether a rank of this verdict is lost until it is healed. @param {string} verdict */
export function isDead(verdict) {
  return markOf(verdict).shape === 'cross';
}

/**
 * "7 busy, 1 failed"
 * @param {Record<string, number>} counts by verdict
 */
export function countsText(counts) {
  return [...new Set([...verdictNames(), ...Object.keys(counts)])]
    .filter(verdict => counts[verdict])
    .map(verdict => `${counts[verdict]} ${markOf(verdict).word}`)
    .join(', ');
}

/**
 * An age as people say it: "3 s", "4:05", "2 h 10 min", "3 d 4 h".
 * @param {number} ms
 */
export function ageText(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`;
  const h = Math.floor(s / 3600);
  return h < 48
    ? `${h} h ${Math.floor((s % 3600) / 60)} min`
    : `${Math.floor(h / 24)} d ${h % 24} h`;
}

/**
 * A quantity of MiB: "312 MiB", "79.6 GiB".
 * @param {number} mib
 */
export function memoryText(mib) {
  return mib < 1024 ? `${Math.round(mib)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}
