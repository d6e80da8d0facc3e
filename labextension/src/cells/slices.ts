/** What stands after `%%mesh`: slices that people choose and those they chose lately. No DOM here. */

const WORD = /^(all|@?[A-Za-z_]\w*|[A-Za-z_]\w*=[-\d:,]+|\d+(-\d+)?(,\d+(-\d+)?)*)$/;
/** As the kernel has it, in `auto_transform.py`. */
const MAGIC =
  /^\s*(?:\?{1,2}\s*|[\w.,\s]+=\s*)?(%%\w+|%(?:mesh|px|autopx|pxconfig|load_ext|reload_ext|unload_ext|config)\b)/;
const MOST_RECENT = 6;
const MOST_CHOICES = 8;

/** "" if the kernel can be asked for it, or a sentence. Whether such ranks exist the kernel knows. */
export function problemOf(slice: string): string {
  const wrong = slice
    .trim()
    .split(/\s+/)
    .find(word => word && !WORD.test(word));
  return wrong ? `"${wrong}" is no choice of ranks; write 0-3, or gpus=0:4, or all` : '';
}

/** As the kernel is told: one line, single spaces, "all" left out. */
export function tidy(slice: string): string {
  return slice.trim().replace(/\s+/g, ' ').replace(/^all$/, '');
}

/** What to offer for a mesh: each value of each axis that is longer than one, where these are few. */
export function choicesOf(labels: readonly string[], sizes: readonly number[]): string[] {
  return labels.flatMap((label, axis) =>
    sizes[axis] > 1 && sizes[axis] <= MOST_CHOICES
      ? Array.from({ length: sizes[axis] }, (_, value) => `${label}=${value}`)
      : []
  );
}

/** The chosen one first, the others behind it. */
export function remember(recent: readonly string[], slice: string): string[] {
  return slice ? [slice, ...recent.filter(one => one !== slice)].slice(0, MOST_RECENT) : [...recent];
}

/** What begins the text and says itself where it runs, a cell magic or a command to the mesh; else "". */
export function ownMagic(source: string): string {
  return MAGIC.exec(firstLine(source) ?? '')?.[1] ?? '';
}

/** Why a cell of this text cannot be sent to the mesh; "" if it can. */
export function refusal(source: string): string {
  if (firstLine(source) === undefined) {
    return 'The cell is empty: there is nothing to send to the mesh.';
  }
  const magic = ownMagic(source);
  return magic && `The cell begins with ${magic}, which says where it runs: run it as usual.`;
}

function firstLine(source: string): string | undefined {
  return source.split('\n').find(line => line.trim() && !line.trim().startsWith('#'));
}
