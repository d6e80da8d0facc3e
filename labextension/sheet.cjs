/* A loader: a style sheet becomes a module that puts it into the page. What comes often in it travels once, and a sign in its place. */

const SIGNS = [...'ABCDEFGHIJKLMNOPQRSTUVWXYZ`^~?|$&!_<=@'];
const LONGEST = 40;

module.exports = css => {
  const [packed, words] = pack(css);
  const text = `${JSON.stringify(words)}.reduceRight((css, [sign, word]) => css.replaceAll(sign, word), ${JSON.stringify(packed)})`;
  return `document.head.append(Object.assign(document.createElement('style'), { textContent: ${text} }));`;
};

/* The sheet with signs, and what they stand for. A word may hold signs of earlier ones, so the last is put back first. */
function pack(css) {
  const words = [];
  for (const sign of SIGNS.filter(sign => !css.includes(sign))) {
    const word = heaviest(css);
    if (!word) break;
    css = css.replaceAll(word, () => sign);
    words.push([sign, word]);
  }
  return [css, words];
}

/* The piece that costs most, from the start of a word on. */
function heaviest(css) {
  const counts = new Map();
  for (const { index } of css.matchAll(/(?<![a-z])[^0-9]/g)) {
    for (let size = 4; size <= LONGEST; size++) {
      const piece = css.slice(index, index + size);
      if (piece.length === size) counts.set(piece, (counts.get(piece) ?? 0) + 1);
    }
  }
  const gain = ([piece, count]) => (count - 1) * (piece.length - 1) - 12;
  const best = [...counts].reduce((a, b) => (gain(a) >= gain(b) ? a : b), ['', 0]);
  return gain(best) > 0 ? best[0] : '';
}
