/** The log of a mesh: what its ranks have written, and what they write. */

import { Widget } from '@lumino/widgets';

import { showError } from '../actions.js';
import {
  button,
  type Connection,
  copyText,
  element,
  type LogLine,
  runs,
  runsText,
  setText
} from '../front.js';
import type { Link } from '../kernel/links.js';
import { choiceField, named, statusLine, textField } from '../ui/elements.js';
import { saveLogs } from './download.js';
import { type Choice, clockText, LogLines, searchOf } from './loglines.js';
import { LogView } from './logview.js';

/** What the settings say: how many lines are kept, and whether each tells when it came. */
export interface LogChoice {
  readonly logLines: number;
  readonly logTimes: boolean;
}

/** Lines of a mesh, and the number of the newest line of all meshes before them. */
interface Page {
  lines: LogLine[];
  last: number | null;
}

const NOTHING: Page = { lines: [], last: null };
const FIRST_LINES = 5_000;
/** A flood has ended: what it made the kernel skip is asked for. */
const QUIET_MS = 700;
const LEVELS: [string, string][] = [
  ['all levels', ''],
  ['warnings', 'warning'],
  ['errors', 'error']
];

export class LogPanel extends Widget {
  readonly #lines: LogLines;
  readonly #view: LogView;
  readonly #ranks = textField('Ranks', 'all ranks, or 0-3,7', 'search');
  readonly #level = choiceField('Level', LEVELS);
  readonly #search = textField('Search', 'regular expression', 'search');
  readonly #count = statusLine('log-count');
  readonly #pill = button('', 'Go to the newest line', () => { this.#view.toEnd(); });
  readonly #note = statusLine('log-note');
  readonly #times = toggle('times', 'Tell when each line came', isOn => { this.#showTimes(isOn); });
  readonly #save = button('download', 'Save the whole logs of these ranks as one file, with times', () => {
    void this.#download();
  });
  #only = false;
  /** The newest line when the user left the end. */
  #seen = -1;
  #quiet = 0;
  /** How often a filling of gaps was stopped. */
  #stops = 0;
  /** Whether the lines are those of a kernel that is gone. */
  #isOld = false;
  #connection: Connection | null = null;
  #unfollow: () => void = () => undefined;
  readonly #undo: () => void;

  constructor(
    private readonly link: Link,
    readonly mesh: string,
    choice: LogChoice
  ) {
    super();
    this.addClass('mnb-palette');
    this.addClass('mnb-log');
    this.#lines = new LogLines(choice.logLines);
    this.#view = new LogView(this.#lines);
    this.#showTimes(choice.logTimes);
    named(this.#view.node, `Log of ${mesh}`);
    this.#view.onFollow = () => { this.#tellNew(); };
    this.#pill.classList.add('mnb-log-pill');
    this.#pill.hidden = true;
    this.node.append(this.#bar(), this.#note, this.#view.node, this.#pill);
    this.#undo = link.changed.add(() => { this.#attend(); });
    this.#attend();
  }

  override dispose(): void {
    this.#undo();
    this.#unfollow();
    this.#stopFilling();
    this.#view.dispose();
    super.dispose();
  }

  /** Show these ranks; null: all. */
  choose(ranks: string | null): void {
    this.#ranks.value = ranks ?? '';
    this.#chooseLines();
  }

  take({ logLines, logTimes }: LogChoice): void {
    this.#lines.limit(logLines);
    this.#showTimes(logTimes);
  }

  protected override onActivateRequest(): void {
    this.#view.node.focus();
  }

  protected override onAfterShow(): void {
    this.#view.layOut();
  }

  /** Take the lines of the kernel that is there now; those of the one before stay until some come. */
  #attend(): void {
    const { connection, why } = this.link;
    if (connection === this.#connection) {
      return;
    }
    this.#unfollow();
    this.#stopFilling();
    this.#connection = connection;
    this.#isOld = this.#lines.size > 0;
    setText(this.#note, this.#isOld || !connection ? why : '');
    if (connection) {
      this.#unfollow = whenUp(connection, this.mesh, () => {
        void this.#load(connection);
      });
    }
  }

  async #load(connection: Connection): Promise<void> {
    const { lines, last } = (await this.#ask(null)) ?? NOTHING;
    if (connection !== this.#connection || this.isDisposed) {
      return;
    }
    this.#take(lines, 0);
    this.#unfollow = connection.follow(this.mesh, null, last, (news, skipped) => {
      this.#take(news, skipped);
    });
  }

  /** The newest lines before this one, null: of all. Null if there is no answer, or no use for it. */
  async #ask(before: number | null): Promise<Page | null> {
    const { mesh } = this;
    const connection = this.#connection;
    let page: Page | null = null;
    try {
      const wish = { mesh, ranks: null, count: FIRST_LINES, pattern: '', level: '', before };
      page = ((await connection?.ask('logs', wish)) as Page | undefined) ?? null;
    } catch (error) {
      showError(error);
    }
    return connection !== this.#connection || this.isDisposed ? null : page;
  }

  #take(lines: readonly LogLine[], skipped: number): void {
    if (this.#isOld && lines.length > 0) {
      this.#isOld = false;
      this.#lines.clear(-1);
      setText(this.#note, '');
    }
    const shown = this.#lines.append(lines, skipped);
    if (skipped > 0) {
      this.#stopFilling();
      this.#quiet = setTimeout(() => void this.#fillGaps(), QUIET_MS);
    }
    if (shown) {
      this.#view.append(shown);
      this.#tell();
    } else {
      this.#layOut();
    }
  }

  #showTimes(isOn: boolean): void {
    this.#times.setAttribute('aria-pressed', String(isOn));
    this.#view.hasTimes = isOn;
    this.#view.layOut();
  }

  /** All that the kernel has of the ranks that are chosen, whatever the search is. */
  async #download(): Promise<void> {
    const connection = this.#connection;
    if (!connection) {
      return;
    }
    this.#save.disabled = true;
    const ranks = this.#chosenRanks();
    const tell = (size: number) => {
      setText(this.#note, `downloading: ${(size / 1e6).toFixed(1)} MB`);
    };
    const isOver = () => connection !== this.#connection || this.isDisposed;
    try {
      await saveLogs(connection, this.mesh, ranks && runsText(ranks), tell, isOver);
      setText(this.#note, '');
    } catch (error) {
      setText(this.#note, '');
      showError(error);
    }
    this.#save.disabled = false;
  }

  #chosenRanks(): number[] | null {
    return this.#ranks.value.trim() ? runs(this.#ranks.value) : null;
  }

  #stopFilling(): void {
    clearTimeout(this.#quiet);
    this.#stops++;
  }

  /** Get what a flood made the kernel skip, as far as it keeps it. */
  async #fillGaps(): Promise<void> {
    const stops = this.#stops;
    for (let gap; (gap = this.#lines.gaps.at(-1)); ) {
      const page = await this.#ask(gap.before);
      if (!page || stops !== this.#stops) {
        return;
      }
      this.#lines.fill(gap, page.lines);
      this.#layOut();
    }
  }

  /** Get the lines before those that are here. */
  async #getEarlier(): Promise<void> {
    const page = await this.#ask(this.#lines.first);
    if (page) {
      this.#lines.merge(page.lines);
      this.#layOut();
    }
  }

  /** All lines again: others are between them, or none. */
  #layOut(): void {
    this.#view.forgetPlace();
    this.#view.layOut();
    this.#tell();
  }

  #bar(): HTMLElement {
    const bar = named(element('div', 'log-bar'), `What is shown of ${this.mesh}`);
    bar.setAttribute('role', 'toolbar');
    this.#ranks.addEventListener('input', () => { this.#chooseLines(); });
    this.#level.addEventListener('change', () => { this.#chooseLines(); });
    this.#search.addEventListener('input', () => { this.#chooseLines(); });
    this.#search.addEventListener('keydown', event => { this.#onSearchKey(event); });
    const only = toggle('matches only', 'Leave out lines that the search does not find', isOn => {
      this.#only = isOn;
      this.#chooseLines();
    });
    const wrap = toggle('wrap', 'Wrap long lines', isOn => { this.#view.wrap = isOn; });
    const copy = button('copy', 'Copy the lines that are shown', () => { void copyText(this.#text()); });
    const clear = button('clear', 'Forget the lines that are here', () => {
      this.#lines.clear();
      this.#layOut();
    });
    const earlier = button('earlier', 'Get earlier lines from the kernel', () => { void this.#getEarlier(); });
    const previous = button('↑', 'Previous line that is found (Shift Enter)', () => { this.#find(-1); });
    const next = button('↓', 'Next line that is found (Enter)', () => { this.#find(1); });
    named(previous, 'previous match');
    named(next, 'next match');
    const find = [this.#search, previous, next, this.#count, only];
    bar.append(this.#ranks, this.#level, ...find, wrap, this.#times, earlier, copy, this.#save, clear);
    return bar;
  }

  #chooseLines(): void {
    const search = searchOf(this.#search.value);
    const isWrong = typeof search === 'string';
    this.#search.setAttribute('aria-invalid', String(isWrong));
    this.#search.title = isWrong ? search : '';
    const chosen = this.#chosenRanks();
    const ranks = chosen && new Set(chosen);
    const level = this.#level.value as Choice['level'];
    this.#lines.choose({ ranks, level, search: isWrong ? null : search, only: this.#only });
    this.#layOut();
  }

  /** Enter: to the next line that is found, with Shift to the one before. */
  #onSearchKey(event: KeyboardEvent): void {
    if (event.key === 'Enter') {
      event.preventDefault();
      this.#find(event.shiftKey ? -1 : 1);
    }
  }

  /** Go to the next line that is found, or the one before. */
  #find(step: 1 | -1): void {
    if (!this.#lines.found) {
      return;
    }
    const { shown } = this.#lines;
    let at = this.#view.place;
    do {
      at = (at + step + shown.length) % shown.length;
    } while (!this.#lines.isFound(shown[at]));
    this.#view.show(at);
    this.#tell();
  }

  #tell(): void {
    this.#tellNew();
    const { size, shown, found, search, gone, skipped } = this.#lines;
    const lines = shown.length === size ? `${size} lines` : `${shown.length} of ${size} lines`;
    const place = this.#lines.placeOfFound(this.#view.marked);
    const all = search ? `${place ? `${place} of ` : ''}${found} found in ${lines}` : lines;
    const less = [gone && `${gone} older ones dropped`, skipped && `${skipped} skipped`];
    setText(this.#count, [all, ...less].filter(Boolean).join(', '));
  }

  /** How much has come below since the user left the end. */
  #tellNew(): void {
    const { isFollowing } = this.#view;
    if (isFollowing) {
      this.#seen = this.#lines.last ?? -1;
    }
    const count = this.#lines.newer(this.#seen);
    this.#pill.hidden = isFollowing;
    setText(this.#pill, count ? `↓ ${count} new ${count === 1 ? 'line' : 'lines'}` : '↓ newest');
  }

  #text(): string {
    const time = (at: number) => (this.#view.hasTimes ? `${clockText(at)} ` : '');
    return this.#lines.shown.map(([, , rank, , , text, at]) => `${time(at)}[${rank}] ${text}`).join('\n');
  }
}

/** Call once when the mesh is up. Returns the undo. */
function whenUp(connection: Connection, mesh: string, call: () => void): () => void {
  if (connection.model.meshes.has(mesh)) {
    call();
    return () => undefined;
  }
  const undo = connection.model.onChange(({ meshes }) => {
    if (meshes.get(mesh)) {
      undo();
      call();
    }
  });
  return undo;
}

function toggle(text: string, title: string, onChange: (isOn: boolean) => void): HTMLElement {
  const node = button(text, title, () => {
    const isOn = node.getAttribute('aria-pressed') !== 'true';
    node.setAttribute('aria-pressed', String(isOn));
    onChange(isOn);
  });
  node.setAttribute('aria-pressed', 'false');
  return node;
}
