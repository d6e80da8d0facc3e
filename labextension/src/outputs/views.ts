/** What draws a mesh, in a script of its own: a page that shows none does without. */
export { mountMesh } from '../front.js';
