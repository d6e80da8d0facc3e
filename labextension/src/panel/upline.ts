/** The line of `%mesh up` that a form means. Pure: nothing is drawn or sent. */

/** Where ranks may be: this machine (its name is ""), an engine, a profile. */
export interface Where {
  name: string;
  title: string;
  /** Why it cannot be used here, or "". */
  missing: string;
  options: readonly string[];
  required: readonly string[];
  /** Its hosts are named. */
  places: boolean;
  /** The options of a profile, as they would be typed. */
  words?: string;
}

/** What stands in the fields. */
export interface Choice {
  where: Where;
  hosts: string;
  sizes: string;
  device: string;
  name: string;
  options: readonly [name: string, value: string][];
  /** Other meshes are up. */
  isBeside: boolean;
}

export interface Line {
  line: string;
  /** "4 ranks", "8 ranks on 2 hosts". */
  what: string;
  /** Why it cannot be run, or "". */
  wrong: string;
  /** Something was written that makes no sense; otherwise something is not written yet. */
  isWrong: boolean;
}

export interface Shape {
  sizes: Record<string, number>;
  ranks: number;
}

const AXIS = /^([A-Za-z_]\w*)\s*=\s*(\d{1,7})$/;
const PLAIN = /^[\w@%+=:,./-]+$/;
const MOST_RANKS = 100_000;

/** What is typed, what it brings up, and what is wrong with it. */
export function lineOf(choice: Choice): Line {
  const { where, device, name, options, isBeside } = choice;
  const sizes = sizesOf(choice);
  const hosts = hostsOf(choice);
  const unset = where.required.find(each => !options.some(([key, value]) => key === each && value));
  const wrong = [sizes, hosts].find(one => typeof one === 'string') ?? (unset ? `${unset} is needed` : '');
  const axes = typeof sizes === 'string' ? {} : sizes.sizes;
  const words = [
    ...Object.entries(axes).map(([axis, size]) => `${axis}=${size}`),
    ...(where.name ? onWords(choice) : []),
    ...options.filter(([, value]) => value).flatMap(([key, value]) => optionWords(key, value)),
    ...(device === 'auto' ? [] : ['--device', device]),
    ...(name ? optionWords('name', name) : []),
    ...(isBeside ? ['--new'] : [])
  ];
  return {
    line: ['%mesh up', ...words.map(quoted)].join(' '),
    what: whatText(where, sizes, hosts),
    wrong,
    isWrong: typeof sizes === 'string'
  };
}

/** The axes of each host; a sentence of what is wrong. None where a profile has them. */
export function sizesOf({ where, sizes }: Choice): Shape | string {
  return where.words && !sizes.trim() ? { sizes: {}, ranks: 0 } : parseSizes(sizes);
}

/** Whether a profile says how many ranks each host has. */
export function hasSizes(words: string): boolean {
  return words.includes('--gpus');
}

function onWords({ where, hosts }: Choice): string[] {
  if (where.places) {
    return ['--on', `${where.name}:${hosts}`];
  }
  return ['--on', where.name, ...(where.words ? [] : ['--hosts', hosts])];
}

function optionWords(key: string, value: string): string[] {
  return value.startsWith('-') ? [`--${key}=${value}`] : [`--${key}`, value];
}

/** How many; 0 where that is not known here. A sentence where it makes no sense. */
function hostsOf({ where, hosts }: Choice): number | string {
  if (where.name === '' || where.words) {
    return 0;
  }
  if (where.places) {
    const names = hosts.split(',').filter(Boolean);
    return names.length ? names.length : 'Name the hosts: node1,node2';
  }
  return /^[1-9]\d{0,5}$/.test(hosts) ? Number(hosts) : 'Hosts is a whole number of at least 1';
}

function whatText(where: Where, sizes: Shape | string, hosts: number | string): string {
  if (typeof sizes === 'string' || typeof hosts === 'string') {
    return 'a mesh';
  }
  if (where.words) {
    return `a mesh on ${where.name}`;
  }
  if (hosts === 0) {
    return ranksText(sizes.ranks);
  }
  return `${ranksText(sizes.ranks * hosts)} on ${hosts === 1 ? '1 host' : `${hosts} hosts`}`;
}

/** As a shell would want it, which is how magics read their lines. */
export function quoted(word: string): string {
  return PLAIN.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** What the text means, or a sentence of what is wrong with it. */
export function parseSizes(text: string): Shape | string {
  const words = text.trim().replace(/\s*=\s*/g, '=').split(/[\s,x×]+(?=\S)/).filter(Boolean);
  if (words.length === 0) {
    return 'Say how many: gpus=4, or replicas=2 gpus=4';
  }
  const sizes: Record<string, number> = {};
  for (const word of words) {
    const found = AXIS.exec(/^\d+$/.test(word) && words.length === 1 ? `gpus=${word}` : word);
    if (!found) {
      return `"${word}" is no axis and size; write it like gpus=4`;
    }
    const [, name, size] = found;
    if (Object.hasOwn(sizes, name)) {
      return `"${name}" is there twice`;
    }
    if (Number(size) < 1) {
      return `${name} is at least 1`;
    }
    sizes[name] = Number(size);
  }
  const ranks = Object.values(sizes).reduce((a, b) => a * b, 1);
  return ranks > MOST_RANKS ? `${ranks} ranks are more than ${MOST_RANKS}` : { sizes, ranks };
}

/** "1 rank", "8 ranks". */
export function ranksText(count: number): string {
  return count === 1 ? '1 rank' : `${count} ranks`;
}
