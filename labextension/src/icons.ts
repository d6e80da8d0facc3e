/** The extension's icons; their colours are the theme's. */

import { LabIcon } from '@jupyterlab/ui-components';

const grid = (...filled: string[]) => {
  const cells = [1, 9, 17].flatMap(y => [1, 9, 17].map(x => `<rect x="${x}" y="${y}" `));
  const size = 'width="6" height="6" rx="1.5"';
  const fill = cells.map((cell, i) => `${cell}${size} ${filled[i] ?? ''}/>`).join('');
  return `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><g class="jp-icon3 jp-icon-selectable" fill="#616161">${fill}</g></svg>`;
};
const FAINT = 'opacity=".45"';

export const meshIcon = new LabIcon({
  name: 'monarch-nb:mesh',
  svgstr: grid('', FAINT, '', FAINT, '', FAINT, '', FAINT, '')
});

export const runIcon = new LabIcon({
  name: 'monarch-nb:run',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><g class="jp-icon3" fill="#616161">' +
    '<path d="M3 4v16l9-8z"/>' +
    [4, 10, 16].map(y => `<rect x="14" y="${y}" width="3.5" height="4" rx="1"/>`).join('') +
    [4, 10, 16].map(y => `<rect x="19" y="${y}" width="3.5" height="4" rx="1" opacity=".6"/>`).join('') +
    '</g></svg>'
});

export const chooseIcon = new LabIcon({
  name: 'monarch-nb:choose',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><path class="jp-icon3" fill="#616161" d="M5.4 8.6 4 10l8 8 8-8-1.4-1.4L12 15.2z"/></svg>'
});
