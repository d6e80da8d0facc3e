// @ts-check
// The view as a widget: VS Code, Colab, Notebook and JupyterLab without the extension. Rule of the file: messages only, no state of its own.

import { Connection } from './data/connection.js';
import { parse } from './data/protocol.js';
import { mountMesh } from './view.js';

/**
 * @typedef {object} WidgetModel what anywidget gives
 * @property {(name: string) => any} get
 * @property {(content: any) => void} send
 * @property {(event: string, listener: (content: any) => void) => void} on
 * @property {(event: string, listener: (content: any) => void) => void} off
 */

/** @param {WidgetModel} model @returns {import("./data/connection.js").Transport} */
function widgetTransport(model) {
  return {
    send: message => model.send(message),
    listen(listener) {
      const heard = (/** @type {unknown} */ content) => listener(content);
      model.on('msg:custom', heard);
      return () => model.off('msg:custom', heard);
    }
  };
}

export default {
  /** @param {{model: WidgetModel, el: HTMLElement}} context @returns {() => void} what ends it */
  render({ model, el }) {
    const mesh = String(model.get('mesh') ?? '');
    const connection = new Connection(widgetTransport(model), { mesh: mesh || null });
    const snapshot = parse(model.get('snapshot'));
    const view = mountMesh(el, connection, {
      mesh,
      ranks: model.get('ranks') ?? null,
      onJump: number => view.say(`it is the cell with the number [${number}]`),
      onLogs: (_, ranks) => view.say(`type: %mesh logs ${ranks}`)
    });
    if (typeof snapshot !== 'string' && snapshot.type === 'state') connection.model.apply(snapshot);
    connection.open();
    return () => {
      view.dispose();
      connection.close();
    };
  }
};
