// @ts-check
// Whether anybody sees a view. Rule of the file: what nobody sees costs the kernel and the page nothing.

const HIDDEN_MS = 3000; // who scrolls past comes back soon

/**
 * Call `seen` and `hidden` as the element comes into sight and has been out of it for a while, `tick` each second in between.
 * @param {HTMLElement} el
 * @param {{seen(): void, hidden(): void, tick(): void, resized(): void}} calls
 * @returns {() => void} undo
 */
export function watchSight(el, calls) {
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let ticking;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let leaving;
  let inSight = true;
  /** @type {boolean | undefined} */
  let before;
  const look = () => {
    const seen = inSight && !document.hidden;
    if (seen === before) return;
    before = seen;
    clearTimeout(leaving);
    clearInterval(ticking);
    ticking = seen ? setInterval(() => calls.tick(), 1000) : undefined;
    if (seen) calls.seen();
    else leaving = setTimeout(() => calls.hidden(), HIDDEN_MS);
  };
  const sizes = new ResizeObserver(() => calls.resized());
  const sight = new IntersectionObserver(entries => {
    inSight = entries[entries.length - 1].isIntersecting;
    look();
  });
  sizes.observe(el);
  sight.observe(el);
  document.addEventListener('visibilitychange', look);
  look();
  return () => {
    sizes.disconnect();
    sight.disconnect();
    document.removeEventListener('visibilitychange', look);
    clearTimeout(leaving);
    clearInterval(ticking);
  };
}
