/**
 * Outputs of cells that another page has begun: the one before this page was loaded again.
 *
 * JupyterLab drops what comes for a request that is not this page's. The kernel keeps what stands below its cells,
 * and tells it; from then on their messages are followed here, until the cell is run again.
 * Rule of the file: no cell that JupyterLab follows is touched, and none twice. A page holds a lock for each of its
 * connections: what another page of this browser follows is that page's. Documents that several pages share are
 * left alone: their pages would each add the same.
 */

import type { Cell, CodeCell, ICodeCellModel } from '@jupyterlab/cells';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONExt, type PartialJSONObject } from '@lumino/coreutils';

import type { Connection } from '../front.js';
import { isCode } from './code.js';

/** A cell and what stands below it, as the kernel tells it. */
interface Kept {
  /** JupyterLab's. */
  id: string;
  /** The id of the request that has run it, and the page that has sent that. */
  message: string;
  session: string;
  code: string;
  running: boolean;
  number: number | null;
  outputs: IOutput[];
  /** It is cleared when the next output comes. */
  clears: boolean;
  /** Those that it is made of; some of them may come yet. */
  messages: string[];
}

type Message = KernelMessage.IIOPubMessage;
type IOutput = Parameters<ICodeCellModel['outputs']['add']>[0];

const OVER: readonly Kernel.Status[] = ['restarting', 'autorestarting', 'terminating', 'dead'];

/** A file that was saved so soon after a cell's end may not have all of it. */
const SOON_MS = 1_000;

/** Of one kernel. */
export class Adopter {
  readonly #adopted = new Map<string, Adopted>();
  /** Pages that are gone, whose cells are now this page's. */
  readonly #sessions = new Set<string>();
  /** What comes while the kernel is asked. */
  #early: Message[] = [];
  #asking = 0;
  #looking = Promise.resolve();

  constructor(
    private readonly tracker: INotebookTracker,
    private readonly kernel: Kernel.IKernelConnection,
    private readonly connection: Connection
  ) {
    void claim(kernel.clientId);
    kernel.iopubMessage.connect(this.#onMessage);
    kernel.statusChanged.connect(this.#onStatus);
  }

  /** Adopt what runs, and what has ended since the notebook's file was saved. */
  look(): void {
    this.#asking += 1;
    const look = async () => {
      try {
        await this.#look();
      } catch {
        // the kernel is gone, or does not answer: nothing to adopt
      }
      this.#asking -= 1;
      this.#early = this.#asking ? this.#early : [];
    };
    this.#looking = this.#looking.then(look);
  }

  async #look(): Promise<void> {
    for (const panel of await this.#panels()) {
      const saved = Date.parse(panel.context.contentsModel?.last_modified ?? '') || Date.now();
      const since = Math.max(saved - SOON_MS, 0);
      const { cells } = (await this.connection.ask('outputs', { since })) as { cells: Kept[] };
      for (const kept of cells) {
        await this.#consider(panel, kept);
      }
    }
  }

  async #consider(panel: NotebookPanel, kept: Kept): Promise<void> {
    const isNew = kept.session !== this.kernel.clientId && !this.#adopted.has(kept.message);
    const model = isNew ? cellOf(panel, kept.id)?.model : undefined;
    const isMeant = kept.running || model?.sharedModel.getSource() === kept.code;
    if (model && isMeant && (await claim(kept.session))) {
      this.#sessions.add(kept.session);
      this.#adopt(model, kept);
    }
  }

  /** In one go, so that each message is either in what was kept, or early, or followed. */
  #adopt(model: ICodeCellModel, kept: Kept): void {
    if (this.#isFollowed(model)) {
      return;
    }
    for (const [request, older] of this.#adopted) {
      if (older.model === model) {
        this.#adopted.delete(request);
      }
    }
    const adopted = new Adopted(model, kept);
    this.#adopted.set(kept.message, adopted);
    for (const message of this.#early) {
      this.#tell(adopted, kept.message, message);
    }
  }

  #tell(adopted: Adopted, request: string, message: Message): void {
    if (this.#isFollowed(adopted.model)) {
      this.#adopted.delete(request); // it was run again, by this page
    } else if (parentOf(message).msg_id === request) {
      adopted.take(message);
    } else if (['display_data', 'update_display_data'].includes(message.header.msg_type)) {
      adopted.change(message.content as DisplayContent);
    }
  }

  /** Whether JupyterLab brings its outputs, in some view: this page has run it. Or it was removed. */
  #isFollowed(model: ICodeCellModel): boolean {
    const follows = (cell: Cell) => cell.model === model && isCode(cell) && hasFuture(cell);
    const panel = this.tracker.find(({ content }) => content.widgets.some(follows));
    return model.isDisposed || panel !== undefined;
  }

  /** The notebooks of this kernel whose outputs are this page's alone. */
  async #panels(): Promise<NotebookPanel[]> {
    const own: NotebookPanel[] = [];
    this.tracker.forEach(panel => {
      if (panel.sessionContext.session?.kernel?.id === this.kernel.id) {
        own.push(panel);
      }
    });
    await Promise.all(own.map(panel => panel.context.ready));
    return own.filter(panel => !panel.isDisposed && !panel.context.model.collaborative);
  }

  readonly #onMessage = (_: unknown, message: Message): void => {
    const { session, msg_id } = parentOf(message);
    if (this.#asking) {
      this.#early.push(message);
    }
    for (const [request, adopted] of [...this.#adopted]) {
      this.#tell(adopted, request, message);
    }
    const isNext = message.header.msg_type === 'execute_input' && this.#sessions.has(session);
    if (isNext && !this.#adopted.has(msg_id)) {
      this.look();
    }
  };

  readonly #onStatus = (_: unknown, status: Kernel.Status): void => {
    if (OVER.includes(status)) {
      for (const adopted of this.#adopted.values()) {
        adopted.end();
      }
      this.#adopted.clear();
    }
  };
}

interface DisplayContent {
  data: PartialJSONObject;
  metadata: PartialJSONObject;
  transient?: { display_id?: string };
}

/** A cell whose outputs come to this page by its messages alone. */
class Adopted {
  #number: number | null;
  readonly #known: Set<string>;
  /** Where displays stand that can be changed. */
  readonly #places = new Map<string, number[]>();

  constructor(
    readonly model: ICodeCellModel,
    kept: Kept
  ) {
    this.#number = kept.number;
    this.#known = new Set(kept.messages);
    const { outputs } = this.model;
    const stands = this.model.trusted && !kept.clears && areThere(outputs.toJSON(), kept.outputs);
    if (!stands) {
      this.model.sharedModel.transact(() => { this.model.clearExecution(); }, false); // trusts it, too
    }
    outputs.changed.connect(() => {
      if (outputs.length === 0) {
        this.#places.clear();
      }
    });
    kept.outputs.forEach((output, place) => {
      const content = output as unknown as DisplayContent;
      if (stands) {
        this.#note(content, place);
      } else {
        this.#add(output, content);
      }
    });
    if (kept.clears) {
      outputs.clear(true);
    }
    if (kept.running) {
      this.model.executionState = 'running';
    } else {
      this.end();
    }
  }

  /** A message of this cell's; not again what was kept. */
  take({ header, content }: Message): void {
    if (this.#known.delete(header.msg_id)) {
      return;
    }
    const kind = header.msg_type;
    if (kind === 'stream' || kind === 'display_data' || kind === 'execute_result' || kind === 'error') {
      this.change(content as DisplayContent); // a display is drawn wherever its name stands
      this.#add({ ...content, output_type: kind }, content as DisplayContent);
    } else if (kind === 'update_display_data') {
      this.change(content as DisplayContent);
    } else if (kind === 'clear_output') {
      this.model.outputs.clear((content as { wait: boolean }).wait);
    } else if (kind === 'execute_input') {
      this.#number = (content as { execution_count: number }).execution_count;
    } else if (kind === 'status' && (content as { execution_state: string }).execution_state === 'idle') {
      this.end();
    }
  }

  /** What a display of that name shows from now on. */
  change({ data, metadata, transient }: DisplayContent): void {
    for (const place of this.#places.get(transient?.display_id ?? '') ?? []) {
      this.model.outputs.set(place, { output_type: 'display_data', data, metadata });
    }
  }

  /** It has run, or its kernel is gone. More may come all the same. */
  end(): void {
    if (this.#number !== null) {
      this.model.executionCount = this.#number;
    }
    this.model.executionState = 'idle';
  }

  #add(output: IOutput, content: DisplayContent): void {
    this.model.outputs.add(output);
    this.#note(content, this.model.outputs.length - 1);
  }

  #note({ transient }: DisplayContent, place: number): void {
    if (transient?.display_id) {
      const places = this.#places.get(transient.display_id) ?? [];
      this.#places.set(transient.display_id, [...places, place]);
    }
  }
}

/** Whether these stand there as they are: what is drawn again loses the focus of the keyboard. */
function areThere(standing: IOutput[], outputs: readonly IOutput[]): boolean {
  const plain = outputs.map(output => ({ ...output, transient: undefined }));
  return JSONExt.deepEqual(standing, plain);
}

function parentOf({ parent_header }: Message): { session: string; msg_id: string } {
  return parent_header as { session: string; msg_id: string };
}

function cellOf(panel: NotebookPanel, id: string): CodeCell | undefined {
  const found = panel.content.widgets.find(({ model }) => model.sharedModel.getId() === id);
  return isCode(found) ? found : undefined;
}

function hasFuture({ outputArea }: CodeCell): boolean {
  return (outputArea as { future?: { isDisposed: boolean } | null }).future?.isDisposed === false;
}

const HELD = new Set<string>();

/** Whether this page now speaks for that one: it is gone, or lies behind another browser. */
async function claim(session: string): Promise<boolean> {
  const { locks } = navigator as { locks?: LockManager }; // none without a secure connection
  if (HELD.has(session) || !locks) {
    return true;
  }
  const isFree = await new Promise<boolean>(resolve => {
    void locks.request(`monarch-nb:${session}`, { ifAvailable: true }, lock => {
      resolve(lock !== null);
      return lock && new Promise(() => undefined); // as long as the page is there
    });
  });
  if (isFree) {
    HELD.add(session);
  }
  return isFree;
}
