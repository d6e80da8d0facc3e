/** What this extension has from the views that are shared with the widget: only these names. */
export { Connection } from '../../monarch_nb/notebook/live/front/connection.js';
export { Model } from '../../monarch_nb/notebook/live/front/model.js';
export type { Mesh } from '../../monarch_nb/notebook/live/front/model.js';
export type { Transport } from '../../monarch_nb/notebook/live/front/connection.js';
export type { LogLine, StateMessage } from '../../monarch_nb/notebook/live/front/protocol.js';
export { parse, runs, runsText } from '../../monarch_nb/notebook/live/front/protocol.js';
export {
  ageText,
  countsText,
  isDead,
  isWorking,
  markOf,
  verdictNames
} from '../../monarch_nb/notebook/live/front/marks.js';
export { flame } from '../../monarch_nb/notebook/live/front/flame.js';
export { mountMesh } from '../../monarch_nb/notebook/live/front/view.js';
export { element, setText } from '../../monarch_nb/notebook/live/front/theme.js';
export { button, carefulButton, copyText } from '../../monarch_nb/notebook/live/front/buttons.js';
