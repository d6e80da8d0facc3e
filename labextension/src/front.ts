/** What this extension has from the views that are shared with the widget: only these names. */
export { Connection } from '../../monarch_nb/notebook/view/front/data/connection.js';
export { Model } from '../../monarch_nb/notebook/view/front/data/model.js';
export type { Mesh } from '../../monarch_nb/notebook/view/front/data/model.js';
export type { Transport } from '../../monarch_nb/notebook/view/front/data/connection.js';
export type { Job, LogLine, StateMessage } from '../../monarch_nb/notebook/view/front/data/protocol.js';
export { parse, runs, runsText } from '../../monarch_nb/notebook/view/front/data/protocol.js';
export {
  ageText,
  countsText,
  isDead,
  isWorking,
  markOf,
  stateNames,
  takenText
} from '../../monarch_nb/notebook/view/front/data/words.js';
export { flame } from '../../monarch_nb/notebook/view/front/parts/flame.js';
export type { Kept } from '../../monarch_nb/notebook/view/front/view.js';
export { mountMesh } from '../../monarch_nb/notebook/view/front/view.js';
export { element, setText } from '../../monarch_nb/notebook/view/front/ui/page.js';
export { button, copyText } from '../../monarch_nb/notebook/view/front/ui/controls.js';
