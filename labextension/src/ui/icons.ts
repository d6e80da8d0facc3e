/** The extension's icons; their colours are the theme's. */

import { LabIcon } from '@jupyterlab/ui-components';

const icon = (name: string, path: string, faint = '') =>
  new LabIcon({
    name: `monarch-nb:${name}`,
    svgstr:
      '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><g class="jp-icon3 jp-icon-selectable" fill="#616161">' +
      `<path d="${path}"/><path opacity=".45" d="${faint}"/></g></svg>`
  });

/** Squares of 6 at these places. */
const squares = (...places: string[]) => places.map(place => `M${place}h6v6h-6z`).join('');

export const meshIcon = icon(
  'mesh',
  squares('1 1', '17 1', '9 9', '1 17', '17 17'),
  squares('9 1', '1 9', '17 9', '9 17')
);
export const runIcon = icon('run', 'M2 4v16l9-8zM13 3h5v5h-5zM13 16h5v5h-5zM13 9.5h5v5h-5z', 'M19 3h4v5h-4zM19 16h4v5h-4zM19 9.5h4v5h-4z');
export const chooseIcon = icon('choose', 'M5.4 8.6 4 10l8 8 8-8-1.4-1.4L12 15.2z');
