/** A connection that asks for as much as is looked at: for the status bar alone little, and seldom. */

import { Connection, type Transport } from './front.js';

const ALL = ['strips', 'curves', 'failures', 'actors'];
const LITTLE = ['failures'];

export class WatchedConnection extends Connection {
  /** `idle_ms` is the period while no view is in sight, `period_ms` that of views. */
  constructor(transport: Transport, idle_ms: number, period_ms: number) {
    super(transport, { period_ms: idle_ms, parts: LITTLE });
    this.open();
    this.pace(this, idle_ms);
    this.period = period_ms;
  }

  /** For views that come into sight, and those that are. */
  setPeriod(period_ms: number): void {
    this.period = period_ms;
    for (const [viewer, period] of this.paces) {
      if (viewer !== this && period !== null) {
        this.pace(viewer, period_ms);
      }
    }
  }

  override pace(viewer: object, period_ms: number | null | undefined): void {
    super.pace(viewer, period_ms);
    if (this.state !== 'lost' && this.parts !== this.#wantedParts) {
      this.hello();
    }
  }

  override hello(): void {
    this.parts = this.#wantedParts;
    super.hello();
  }

  get #wantedParts(): string[] {
    const isWatched = [...this.paces].some(([viewer, period]) => viewer !== this && period !== null);
    return isWatched ? ALL : LITTLE;
  }
}
