// The view in a page of its own: demo.html?world=eight&theme=dark&width=300&live=1

import { Connection } from '/monarch_nb/notebook/view/front/data/connection.js';
import { frameOf, layOut } from '/monarch_nb/notebook/view/front/grid/geometry.js';
import { MOST_HEIGHT } from '/monarch_nb/notebook/view/front/grid/grid.js';
import { mountMesh } from '/monarch_nb/notebook/view/front/view.js';
import { live, WORLDS } from './fake_kernel.js';

const asked = new URLSearchParams(location.search);
const theme = asked.get('theme') ?? 'light';
const place = document.querySelector('#place');
if (theme !== 'none') document.body.dataset.jpThemeLight = String(theme === 'light');
const mount = asked.get('mount'); // "away": outside the page, "hidden": not shown
place.style.width = `${asked.get('width') ?? 1100}px`;

const kernel = WORLDS[asked.get('world') ?? 'eight']();
const connection = new Connection(kernel.transport, { mesh: 'train' });
const calls = [];
const take = () => (mount === 'away' ? place.remove() : (place.style.display = 'none'));
const bring = () => {
  document.body.append(place);
  place.style.display = '';
};
if (mount) take();
const view = mountMesh(place, connection, {
  mesh: 'train',
  ranks: null,
  compact: asked.has('compact'),
  onJump: number => calls.push(['jump', number]),
  onLogs: (mesh, ranks) => calls.push(['logs', mesh, ranks])
});
connection.open();
if (asked.has('live')) live(kernel);

/** The middle of a rank's cell in the window, and the colour of a point of its canvas. */
function cellOf(rank) {
  const width = document.querySelector('.mnb-scroll').clientWidth;
  const { labels, sizes } = kernel;
  const layout = layOut(frameOf(labels, sizes, null), { width, height: MOST_HEIGHT });
  const box = document.querySelector('.mnb-scroll canvas').getBoundingClientRect();
  const [x, y] = [layout.x[rank], layout.y[rank]];
  return {
    ...{ x, y, width: layout.cellWidth, height: layout.cellHeight, labels: layout.labels },
    page: { x: box.left + x + layout.cellWidth / 2, y: box.top + y + layout.cellHeight / 2 },
    origin: { x: box.left, y: box.top }
  };
}

const scratch = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });

function colourAt(rank, dx, dy) {
  const { x, y } = cellOf(rank);
  const canvas = document.querySelector('.mnb-scroll canvas');
  const at = [x + dx, y + dy].map(place => Math.round(place * devicePixelRatio));
  scratch.clearRect(0, 0, 1, 1);
  scratch.drawImage(canvas, ...at, 1, 1, 0, 0, 1, 1);
  return [...scratch.getImageData(0, 0, 1, 1).data].slice(0, 3);
}

window.demo = {
  cellOf,
  colourAt,
  kernel,
  connection,
  view,
  calls,
  take,
  bring,
  model: connection.model
};
