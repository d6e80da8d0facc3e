// @ts-check
// What a view needs of its page: elements, colours for a canvas, whether anybody sees it. Rule of the file: colours are set in mesh.css; what nobody sees costs nothing.

/** @typedef {{colours: Record<string, string>, font: string}} Theme */

const COLOURS = [
  ...['back', 'text', 'dim', 'line', 'soft', 'focus', 'on', 'idle', 'busy', 'collective'],
  ...['grey', 'paused', 'silent', 'dead']
];

/**
 * A variable may be `light-dark(...)`: only a real property tells what it comes to.
 * @param {HTMLElement} el
 * @returns {Theme}
 */
export function readTheme(el) {
  const probe = document.createElement('span');
  probe.style.forcedColorAdjust = 'none'; // else all are the text's there
  el.append(probe);
  /** @type {Record<string, string>} */
  const colours = {};
  for (const name of COLOURS) {
    probe.style.color = `var(--mnb-${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return { colours, font: getComputedStyle(el).fontFamily };
}

/**
 * Tell when the page changes between light and dark: at once, and when it has been drawn so, because
 * JupyterLab hides everything for a frame then, and what is hidden is not drawn.
 * @param {() => void} listener
 * @returns {() => void} undo
 */
export function onThemeChange(listener) {
  const again = onceAFrame(listener);
  const tell = () => {
    listener();
    requestAnimationFrame(again.ask);
  };
  const observer = new MutationObserver(tell);
  const filter = ['class', 'theme', 'data-jp-theme-light', 'data-vscode-theme-kind'];
  for (const el of [document.documentElement, document.body]) {
    observer.observe(el, { attributes: true, attributeFilter: filter });
  }
  const medias = ['prefers-color-scheme: dark', 'forced-colors: active'].map(one => matchMedia(`(${one})`));
  for (const media of medias) media.addEventListener('change', tell);
  return () => {
    again.cancel();
    observer.disconnect();
    for (const media of medias) media.removeEventListener('change', tell);
  };
}

/**
 * Give a canvas its size in CSS pixels, sharp on this screen.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 */
export function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext('2d'));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/**
 * Pictures as one, below each other where they are, in CSS pixels.
 * @param {HTMLCanvasElement[]} canvases
 * @param {number} width
 * @param {Theme} theme
 */
export function composed(canvases, width, { colours }) {
  const shown = canvases.filter(({ clientWidth, clientHeight }) => clientWidth && clientHeight > 20);
  const gap = 10;
  const whole = document.createElement('canvas');
  whole.width = width;
  whole.height = Math.max(1, shown.reduce((sum, { clientHeight }) => sum + clientHeight + gap, 0));
  const context = /** @type {CanvasRenderingContext2D} */ (whole.getContext('2d'));
  context.fillStyle = colours.back;
  context.fillRect(0, 0, whole.width, whole.height);
  let top = 0;
  for (const one of shown) {
    context.drawImage(one, 0, top, one.clientWidth, one.clientHeight);
    top += one.clientHeight + gap;
  }
  return whole;
}

/**
 * Call a function at most once a frame, however often it is asked for.
 * @param {() => void} draw
 * @returns {{ask(): void, cancel(): void}}
 */
export function onceAFrame(draw) {
  let asked = 0;
  return {
    ask() {
      asked ||= requestAnimationFrame(() => {
        asked = 0;
        draw();
      });
    },
    cancel() {
      cancelAnimationFrame(asked);
      asked = 0;
    }
  };
}

/**
 * An element with a class and a text.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} name the class, without `mnb-`
 * @param {string} [text]
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, name, text) {
  const el = document.createElement(tag);
  if (name) el.className = `mnb-${name}`;
  if (text !== undefined) el.textContent = text;
  return el;
}

/**
 * A picture that the keyboard works in: it has the keys that a notebook has shortcuts for.
 * @param {HTMLElement} el
 * @param {string} role
 * @param {string} [kind] what it is, where the role does not tell
 */
export function takeKeys(el, role, kind) {
  el.tabIndex = 0;
  el.dataset.lmSuppressShortcuts = 'true';
  el.setAttribute('role', role);
  if (kind) el.setAttribute('aria-roledescription', kind);
}

/** Set a text only where it differs, so that selections of the reader stay. @param {Element} el @param {string} text */
export function setText(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

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
