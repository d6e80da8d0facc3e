/** The shape of a mesh as people write it: "hosts=2 gpus=4". No DOM here. */

export interface Shape {
  sizes: Record<string, number>;
  ranks: number;
}

const AXIS = /^([A-Za-z_]\w*)\s*=\s*(\d{1,7})$/;
const MOST_RANKS = 100_000;

/** What the text means, or a sentence of what is wrong with it. */
export function parseSizes(text: string): Shape | string {
  const words = text.trim().replace(/\s*=\s*/g, '=').split(/[\s,x×]+(?=\S)/).filter(Boolean);
  if (words.length === 0) {
    return 'Say how many: gpus=4, or hosts=2 gpus=4';
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
