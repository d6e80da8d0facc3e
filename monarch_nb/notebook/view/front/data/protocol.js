// @ts-check
// What the kernel says to a mesh view, and the notation of ranks. Rule of the file: nothing is kept here, nothing is drawn.

/**
 * @typedef {{name: string, ended: string | null}} Host
 * @typedef {{number: number, id: string | null, since: number, watched?: boolean}} Cell the notebook cell that runs; `watched`: somebody wants to be told of its end
 * @typedef {{job: number, mesh: string, engine: string, id: string, said: string, state: "coming" | "up" | "scaling" | "failed", hosts: number, enough: number, ends: number | null}} Job hosts that an engine was asked for; `ends`: milliseconds since 1970
 * @typedef {[ranks: string, state: string, what: string, detail: string, since: number | number[]]} RankRow
 * @typedef {{id: number | string, ranks: string, headline: string, where: string, what: string, at: number, count: number}} Failure
 * @typedef {{id: number, ranks: string, headline: string, where: string, what: string, at: number, count: number, came: number, became: string}} PastFailure one that is over; `came`: milliseconds since 1970
 * @typedef {[step: number, mean: number | null, low: number | null, high: number | null, count: number]} CurvePoint
 * @typedef {{name: string, current: string[], curves: Record<string, CurvePoint[]>}} Run `current`: the curves that are told by themselves; the others are of an earlier run
 * @typedef {{name: string, cls: string, size: number, calls: number, failed: number, queue: number, ended: string | null}} ActorRow
 * @typedef {{ranks: string} & Partial<Record<UsageName, (number | null)[]>>} UsageRows
 * @typedef {"cpu" | "rss" | "queue" | "calls" | "failed" | "beat" | "gpu" | "gpu_mem"} UsageName
 */
/**
 * @typedef {object} MeshPart what a state or a delta tells of a mesh
 * @property {string[]} [labels]
 * @property {number[]} [sizes]
 * @property {string | null} [ended]
 * @property {[string, number][]} [hosts]
 * @property {(number | null)[]} [pids]
 * @property {RankRow[]} [ranks]
 * @property {UsageRows} [usage]
 * @property {string[]} [strips]
 * @property {string} [strip]
 * @property {Failure[]} [failures]
 * @property {PastFailure[]} [past]
 * @property {Record<string, {from: number, points: CurvePoint[]}>} [curves]
 * @property {Record<string, Run | null>} [runs]
 * @property {ActorRow[]} [actors]
 */
/**
 * @typedef {[seq: number, mesh: string, rank: number, stream: string, level: string, text: string, at: number]} LogLine `at`: milliseconds since 1970
 * @typedef {{v: 1, type: "state", to: string, n: number, at: number, seconds: number, hosts: Host[], meshes: Record<string, MeshPart>, cell: Cell | null, current?: string | null, jobs?: Job[]}} StateMessage
 * @typedef {{v: 1, type: "delta", base: number, n: number, at: number, seconds?: number, hosts?: Host[], meshes?: Record<string, MeshPart | null>, cell?: Cell | null, current?: string | null, jobs?: Job[]}} DeltaMessage
 * @typedef {{v: 1, type: "answer", to: string, id: number, ok: boolean, value?: any, error?: string}} AnswerMessage
 * @typedef {{v: 1, type: "error", to: string, error: string}} ErrorMessage
 * @typedef {{v: 1, type: "log", lines: LogLine[], skipped: number}} LogMessage
 * @typedef {{v: 1, type: "session", to: string, session: number, text: string, prompt: string, over: boolean}} SessionMessage of a debugger's prompt
 * @typedef {StateMessage | DeltaMessage | AnswerMessage | ErrorMessage | LogMessage | SessionMessage} KernelMessage
 */

// Colours and titles of a terminal, and control characters that are no white space.
// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|[\0-\x08\x0b-\x1f\x7f]/g;

export const VERSION = 1;
export const STRIP_SECONDS = 300;

// What a page draws of one message: who wrote it may be a stranger.
const MAX_RANKS = 1 << 16;
const MAX_AXES = 16;
const MAX_FAILURES = 32;
const MAX_PAST = 100;
const MAX_CURVES = 64;
const MAX_POINTS = 512;
const MAX_RUNS = 20;

/** @param {unknown} value @returns {value is Record<string, any>} */
function isRecord(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** @param {unknown} value */
function isCount(value) {
  return Number.isSafeInteger(value) && Number(value) >= 0;
}

/** @type {Record<string, (message: Record<string, any>) => boolean>} */
const SHAPES = {
  state: m =>
    isCount(m.n) &&
    isFinite(m.at) &&
    isCount(m.seconds) &&
    Array.isArray(m.hosts) &&
    isList(m.jobs, isRecord) &&
    isRecord(m.meshes) &&
    Object.values(m.meshes).every(mesh => isRecord(mesh) && isShape(mesh) && isMeshPart(mesh)),
  delta: m =>
    isCount(m.base) &&
    isCount(m.n) &&
    isFinite(m.at) &&
    (m.hosts === undefined || Array.isArray(m.hosts)) &&
    isList(m.jobs, isRecord) &&
    Object.values(m.meshes ?? {}).every(
      mesh => mesh === null || (isRecord(mesh) && isMeshPart(mesh))
    ),
  answer: m => isCount(m.id) && typeof m.ok === 'boolean',
  error: m => typeof m.error === 'string',
  log: m => Array.isArray(m.lines) && m.lines.every(Array.isArray),
  session: m => isCount(m.session)
};

/** @param {Record<string, any>} mesh */
function isShape(mesh) {
  const { labels, sizes } = mesh;
  if (!Array.isArray(labels) || !Array.isArray(sizes) || labels.length !== sizes.length) {
    return false;
  }
  return sizes.every(isCount);
}

/** @param {Record<string, any>} mesh */
function isMeshPart(mesh) {
  const lists = {
    hosts: Array.isArray,
    ranks: Array.isArray,
    failures: isRecord,
    past: isRecord,
    actors: isRecord
  };
  return (
    Object.entries(lists).every(([name, fits]) => isList(mesh[name], fits)) &&
    ['pids', 'strips'].every(name => isList(mesh[name], () => true)) &&
    (mesh.labels === undefined || isShape(mesh)) &&
    Object.values(mesh.curves ?? {}).every(curve => isList(curve?.points ?? 0, Array.isArray)) &&
    Object.values(mesh.runs ?? {}).every(run => run === null || isRun(run))
  );
}

/** @param {any} run */
function isRun(run) {
  return (
    typeof run?.name === 'string' &&
    isList(run.current ?? 0, one => typeof one === 'string') &&
    isRecord(run.curves) &&
    Object.values(run.curves).every(points => isList(points ?? 0, Array.isArray))
  );
}

/** More than a page draws without a halt; the kernel sends less. @param {Record<string, any>} message */
function isTooMuch({ meshes = {} }) {
  const parts = Object.values(meshes).filter(isRecord);
  const ranks = parts.reduce((sum, { sizes = [0] }) => sum + product(sizes), 0);
  return !(ranks <= MAX_RANKS) || parts.some(isTooMuchOfOne);
}

/** @param {Record<string, any>} mesh */
function isTooMuchOfOne({
  sizes = [],
  ranks = [],
  hosts = [],
  failures = [],
  past = [],
  curves = {},
  runs = {}
}) {
  const told = (/** @type {any[][]} */ rows) => rows.reduce((sum, [text]) => sum + countOf(text), 0);
  const points = Object.values(curves).map(curve => curve.points.length);
  const earlier = Object.values(runs).map(run => Object.values(run?.curves ?? {}));
  return (
    sizes.length > MAX_AXES ||
    Math.max(...sizes, told(ranks), told(hosts)) > MAX_RANKS ||
    failures.length > MAX_FAILURES ||
    past.length > MAX_PAST ||
    points.length > MAX_CURVES ||
    earlier.length > MAX_RUNS ||
    earlier.some(of => of.length > MAX_CURVES) ||
    Math.max(0, ...points, ...earlier.flat().map(of => of.length)) > MAX_POINTS
  );
}

/** @param {number[]} sizes */
function product(sizes) {
  return sizes.reduce((a, b) => a * b, 1);
}

/** Nothing, or a list of what fits. @param {unknown} value @param {(one: unknown) => boolean} fits */
function isList(value, fits) {
  return value === undefined || (Array.isArray(value) && value.every(fits));
}

/**
 * A kernel's message, or a sentence of what is wrong with it.
 * @param {unknown} message
 * @returns {KernelMessage | string}
 */
export function parse(message) {
  if (!isRecord(message)) return 'the kernel has sent something that is no message';
  if (message.v !== VERSION) {
    const advice = message.v > VERSION ? 'reload the page' : 'restart the kernel';
    return `the kernel speaks version ${cutText(message.v, 20)} of the mesh view, this page version ${VERSION}: ${advice}`;
  }
  const shape = Object.hasOwn(SHAPES, message.type) ? SHAPES[message.type] : null;
  if (!shape)
    return `the kernel has sent a message of an unknown type, ${cutText(message.type, 40)}`;
  if (!shape(message)) return `the kernel has sent a ${message.type} that this page cannot read`;
  if (isTooMuch(message)) {
    return `the kernel has sent a ${message.type} of more than this page draws: it draws ${MAX_RANKS} ranks`;
  }
  return /** @type {KernelMessage} */ (message);
}

/**
 * The ranks that "0-3,7" means. What is no rank is left out.
 * @param {string} text
 * @returns {number[]}
 */
export function runs(text) {
  /** @type {number[]} */
  const found = [];
  for (const [first, last] of spans(text)) {
    for (let rank = first; rank <= last && found.length < MAX_RANKS; rank++) found.push(rank);
  }
  return found;
}

/** How many ranks a text means. @param {string} text */
function countOf(text) {
  return spans(text).reduce((sum, [first, last]) => sum + Math.max(0, last - first + 1), 0);
}

/** The first and the last of each part. @param {string} text @returns {[number, number][]} */
function spans(text) {
  return String(text)
    .split(',')
    .map(part => /^\s*(\d{1,7})(?:-(\d{1,7}))?\s*$/.exec(part))
    .filter(match => match !== null)
    .map(([, first, last]) => [Number(first), Math.min(Number(last ?? first), MAX_RANKS - 1)]);
}

/** "0-3,7" for [7, 0, 1, 2, 3]. @param {Iterable<number>} numbers */
export function runsText(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  /** @type {string[]} */
  const parts = [];
  for (let i = 0, j = 0; i < sorted.length; i = j) {
    for (j = i + 1; j < sorted.length && sorted[j] === sorted[j - 1] + 1;) j++;
    parts.push(j - i === 1 ? `${sorted[i]}` : `${sorted[i]}-${sorted[j - 1]}`);
  }
  return parts.join(',');
}

/**
 * A text of any origin, short enough to show, without what only a terminal reads.
 * @param {unknown} text
 * @param {number} length
 */
export function cutText(text, length) {
  const whole = typeof text === 'string' ? text : String(text ?? '');
  const seen = whole.slice(0, 2 * length).replace(ESCAPES, '');
  const more = whole.length > 2 * length;
  return more || seen.length > length ? `${seen.slice(0, length - 1)}…` : seen;
}
