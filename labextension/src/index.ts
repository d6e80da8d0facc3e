import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'monarch-nb:plugin',
  description: 'The mesh of a Monarch kernel: panel, status bar, logs, cell button.',
  autoStart: true,
  activate: (app: JupyterFrontEnd) => {
    console.debug('monarch-nb', app.version);
  }
};

export default plugin;
