/** The settings of `schema/plugin.json`, read. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';

export interface Settings {
  /** How often what is looked at is told, ms. */
  period: number;
  statusBar: boolean;
  cellButton: boolean;
  logLines: number;
}

export const DEFAULTS: Readonly<Settings> = {
  period: 100,
  statusBar: true,
  cellButton: true,
  logLines: 50_000
};

/** Tell the settings, and tell them again whenever the user changes them. */
export async function followSettings(
  registry: ISettingRegistry,
  id: string,
  tell: (settings: Settings) => void
): Promise<void> {
  const settings = await registry.load(id);
  const read = () => {
    tell({ ...DEFAULTS, ...(settings.composite as Partial<Settings>) });
  };
  settings.changed.connect(read);
  read();
}
