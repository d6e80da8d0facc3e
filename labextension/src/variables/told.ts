/** The variables of ranks as the kernel tells them, and what is said of them where there is little room. */

import { runs, runsText } from '../front.js';

/** What is true of these ranks. */
export interface OfRanks {
  ranks: string;
  is: string;
}

/** Ranks whose variable is of the same type, shape and memory; null where it has none of that. */
export interface Group {
  ranks: string;
  type: string;
  shape: number[] | null;
  dtype: string | null;
  bytes: number | null;
  length: number | null;
  parameters: number | null;
  devices: OfRanks[];
  values: OfRanks[];
  /** Whether it is what these ranks had when they answered last. */
  isOld?: boolean;
}

export interface Variable {
  name: string;
  differs: boolean;
  /** The ranks without it. */
  missing: string;
  groups: Group[];
  /** How many groups are left out. */
  more: number;
}

/** Of a mesh of `size` ranks; `left_out`: how many older variables there are. */
export interface Told {
  size: number;
  left_out: number;
  no_answer: string;
  variables: Variable[];
}

export type Order = 'name' | 'memory';

const MAX_VALUES = 3;
const UNITS = ['KB', 'MB', 'GB', 'TB'];

/** What is told now; of ranks that do not answer, what was told before. */
export function withLast(now: Told, before: Told | null): Told {
  const silent = new Set(runs(now.no_answer));
  if (!before || silent.size === 0) {
    return now;
  }
  const byName = new Map(now.variables.map(one => [one.name, one]));
  for (const { name, ...rest } of before.variables) {
    const old = rest.groups.flatMap(group => oldOf(group, silent));
    const known = byName.get(name) ?? { ...rest, name, missing: '', groups: [] };
    if (old.length > 0) {
      byName.set(name, { ...known, groups: [...known.groups, ...old] });
    }
  }
  const names = [...byName.keys()].sort();
  return { ...now, variables: names.flatMap(name => byName.get(name) ?? []) };
}

function oldOf(group: Group, silent: ReadonlySet<number>): Group[] {
  const ofSilent = (ranks: string) => runsText(runs(ranks).filter(rank => silent.has(rank)));
  const only = (found: OfRanks[]) =>
    found.map(one => ({ ...one, ranks: ofSilent(one.ranks) })).filter(one => one.ranks);
  const ranks = ofSilent(group.ranks);
  const { devices, values } = group;
  return ranks ? [{ ...group, ranks, devices: only(devices), values: only(values), isOld: true }] : [];
}

/** Those with every word of the text in their name, type, dtype or shape; by name, or the largest first. */
export function chosen(variables: readonly Variable[], text: string, order: Order): Variable[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = variables.filter(one => words.every(word => textOf(one).includes(word)));
  return order === 'name' ? found : found.sort((a, b) => (memoryOf(b) ?? -1) - (memoryOf(a) ?? -1));
}

function textOf({ name, differs, groups }: Variable): string {
  const kinds = groups.map(one => `${one.type} ${shortText(one)}`);
  return [name, differs ? 'differs' : '', ...kinds].join(' ').toLowerCase();
}

/** The most that it takes on any rank, bytes. */
export function memoryOf({ groups }: Variable): number | null {
  const known = groups.map(({ bytes }) => bytes).filter(bytes => bytes !== null);
  return known.length ? Math.max(...known) : null;
}

/** As the kernel says it: "12 B", "3.9 KB". */
export function sizeText(bytes: number): string {
  let size = bytes;
  let unit = 'B';
  for (const next of UNITS) {
    if (size < 1024) {
      break;
    }
    size /= 1024;
    unit = next;
  }
  return `${unit === 'B' ? size : size.toFixed(1)} ${unit}`;
}

/** "[64, 32] float32", "Linear, 2,080 parameters", "0.5, 1.5, 2.5, …", "list, length 3". */
export function shortText(group: Group): string {
  if (group.shape) {
    return [shapeText(group.shape), group.dtype].filter(Boolean).join(' ');
  }
  if (group.values.length > 0 && group.parameters === null) {
    return someOf(group.values.map(one => one.is));
  }
  return [classOf(group), extentText(group)].filter(Boolean).join(', ');
}

/** Of what has no shape: "2,080 parameters", "length 3", "". */
export function extentText({ parameters, length }: Group): string {
  if (parameters !== null) {
    return `${parameters.toLocaleString('en')} parameters`;
  }
  return length === null ? '' : `length ${length}`;
}

export function shapeText(shape: readonly number[]): string {
  return `[${shape.join(', ')}]`;
}

/** Without the modules, whose names are longer than all the rest. */
export function classOf({ type }: Group): string {
  return type.slice(type.lastIndexOf('.') + 1);
}

function someOf(texts: readonly string[]): string {
  return texts.slice(0, MAX_VALUES).join(', ') + (texts.length > MAX_VALUES ? ', …' : '');
}

/** "rank 3", "ranks 0-2". */
export function who(ranks: string): string {
  return `${/\D/.test(ranks) ? 'ranks' : 'rank'} ${ranks}`;
}

/** Which ranks have it otherwise than the first, and how; "" where their values alone differ. */
export function differences({ groups, missing, more }: Variable): string[] {
  const others = groups[0].isOld ? groups : groups.slice(1);
  const told = others.map(one => `${who(one.ranks)}${one.isOld ? ', before' : ''}: ${shortText(one)}`);
  const rest = more ? [`and ${more} more kinds`] : [];
  return [...told, ...rest, ...(missing ? [`not on ${who(missing)}`] : [])];
}

/** "cuda:0", or where ranks differ "ranks 0-1: 1 to 7, mean 3". */
export function linesOf(found: readonly OfRanks[]): string[] {
  return found.length === 1 ? [found[0].is] : found.map(one => `${who(one.ranks)}: ${one.is}`);
}

/** "4 variables, 3 differ, at 12:03:10"; what is not there is said. */
export function noteText(told: Told, shown: number, at: Date): string {
  const { variables, left_out, no_answer } = told;
  const all = variables.length === 1 ? '1 variable' : `${variables.length} variables`;
  const differing = variables.filter(one => one.differs).length;
  return [
    shown === variables.length ? all : `${shown} of ${all}`,
    differing ? `${differing} ${differing === 1 ? 'differs' : 'differ'}` : '',
    `at ${at.toTimeString().slice(0, 8)}`,
    left_out ? `${left_out} older ones left out` : '',
    no_answer ? `no answer of ${who(no_answer)}, with what was known before` : ''
  ]
    .filter(Boolean)
    .join(', ');
}

/** The first rank with a tensor or an array to open; null: none. */
export function rankToOpen({ groups }: Variable): number | null {
  const tensor = groups.find(one => one.shape !== null);
  return tensor ? parseInt(tensor.ranks, 10) : null;
}
