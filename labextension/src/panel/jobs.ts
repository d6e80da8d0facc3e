/**
 * Hosts that engines were asked for: rows of those that come or have failed, above the meshes; and a line
 * in the section of a mesh that is up, with the field that gives it more hosts or fewer.
 */

import { act, confirmLoss } from '../actions.js';
import { button, type Connection, element, type Job, setText } from '../front.js';
import { statusLine, textField } from '../ui/elements.js';

const NO_LIMIT_MS = 300 * 24 * 3600 * 1000; // Slurm says a year where there is none

/** Of jobs whose meshes are not up: how far they are, with what ends the wait. */
export class JobRows {
  readonly node = element('div', 'lab-rows');
  readonly #rows = new Map<number, JobRow>();

  update(connection: Connection | null): void {
    const jobs = connection?.model.jobs.filter(({ state }) => state === 'coming' || state === 'failed') ?? [];
    for (const [number, row] of this.#rows) {
      if (!jobs.some(({ job }) => job === number)) {
        row.node.remove();
        this.#rows.delete(number);
      }
    }
    for (const job of connection ? jobs : []) {
      const row = this.#rows.get(job.job) ?? (connection && new JobRow(connection, job.job));
      if (row) {
        this.#rows.set(job.job, row);
        row.update(job);
        this.node.append(row.node);
      }
    }
    this.node.hidden = this.#rows.size === 0;
  }
}

class JobRow {
  readonly node = element('div', 'lab-row');
  readonly #name = element('strong', 'lab-row-name');
  readonly #said = statusLine('lab-row-said');
  readonly #settle: HTMLButtonElement;
  readonly #end: HTMLButtonElement;

  constructor(connection: Connection, job: number) {
    this.#settle = button('', 'go on without the hosts that have not come', () => {
      void act(connection, 'settle', { job });
    });
    this.#end = button('', '', () => { void act(connection, 'cancel', { job }); });
    const buttons = element('span', 'lab-row-buttons');
    buttons.append(this.#settle, this.#end);
    this.node.setAttribute('role', 'group');
    this.node.append(this.#name, buttons, this.#said);
  }

  update(job: Job): void {
    const isFailed = job.state === 'failed';
    const name = isFailed ? 'No hosts' : [job.mesh, placeText(job)].join(' · ');
    this.node.setAttribute('aria-label', name);
    this.node.classList.toggle('mnb-mod-failed', isFailed);
    setText(this.#name, name);
    setText(this.#said, job.said);
    setText(this.#settle, `go on with ${job.enough}`);
    this.#settle.hidden = job.enough === 0;
    setText(this.#end, isFailed ? 'dismiss' : 'cancel');
    this.#end.title = isFailed ? 'show this no more' : 'ask for no hosts, and give back those that came';
  }
}

/** Of a mesh that is up on hosts of an engine. */
export class JobLine {
  readonly node = element('form', 'lab-jobline');
  readonly #said = statusLine('lab-row-said');
  readonly #hosts = textField('Hosts of this mesh', '', 'number');
  readonly #scale = element('button', 'button', 'scale');
  readonly #cancel = button('cancel', 'wait for no more hosts', () => {
    if (this.#job) {
      void act(this.connection, 'cancel', { job: this.#job.job });
    }
  });
  #job: Job | null = null;
  #count = 0;

  constructor(
    private readonly connection: Connection,
    private readonly mesh: string
  ) {
    this.#hosts.min = '1';
    this.#scale.type = 'submit';
    this.#scale.title = 'have the mesh on so many hosts';
    this.node.append(this.#said, this.#hosts, this.#scale, this.#cancel);
    this.#hosts.addEventListener('input', () => { this.#offer(); });
    this.node.addEventListener('submit', event => {
      event.preventDefault();
      void this.#ask();
    });
  }

  update(): void {
    const { jobs } = this.connection.model;
    const job = jobs.find(({ mesh, state }) => mesh === this.mesh && state !== 'failed') ?? null;
    this.node.hidden = job === null;
    this.#job = job;
    if (!job) {
      return;
    }
    const isUp = job.state === 'up';
    const until = job.ends === null ? '' : untilText(job.ends);
    setText(this.#said, isUp ? [placeText(job), until].filter(Boolean).join(' · ') : job.said);
    this.#cancel.hidden = job.state !== 'scaling';
    this.#hosts.hidden = this.#scale.hidden = !isUp;
    this.#tellCount();
  }

  get #sizes(): Record<string, number> {
    const mesh = this.connection.model.meshes.get(this.mesh);
    return Object.fromEntries(mesh?.labels.map((label, i) => [label, mesh.sizes[i]]) ?? []);
  }

  /** As it is now, unless somebody writes. */
  #tellCount(): void {
    const { hosts = 1 } = this.#sizes;
    if (hosts !== this.#count) {
      this.#count = hosts;
      this.#hosts.value = String(hosts);
      this.#offer();
    }
  }

  #offer(): void {
    const wanted = Number(this.#hosts.value);
    this.#scale.disabled = !Number.isInteger(wanted) || wanted < 1 || wanted === this.#count;
  }

  async #ask(): Promise<void> {
    const hosts = Number(this.#hosts.value);
    if (hosts < this.#count && !(await this.#mayEnd(hosts))) {
      return;
    }
    await act(this.connection, 'scale', { mesh: this.mesh, hosts });
  }

  #mayEnd(hosts: number): Promise<boolean> {
    const size = this.connection.model.meshes.get(this.mesh)?.size ?? 0;
    const kept = (size / this.#count) * hosts;
    const ranks = kept === size - 1 ? `Rank ${kept}` : `Ranks ${kept}-${size - 1}`;
    const body = `${ranks} of ${this.mesh} will end, with what they hold.`;
    return confirmLoss(`Have ${this.mesh} on ${hostsText(hosts)}?`, body, 'Give hosts back');
  }
}

function hostsText(count: number): string {
  return count === 1 ? '1 host' : `${count} hosts`;
}

/** "slurm 4711, 2 hosts" */
function placeText({ engine, id, hosts }: Job): string {
  return `${[engine, id].filter(Boolean).join(' ')}, ${hostsText(hosts)}`;
}

function untilText(ends: number): string {
  const end = new Date(ends);
  if (ends - Date.now() > NO_LIMIT_MS) {
    return '';
  }
  const isToday = end.toDateString() === new Date().toDateString();
  const time = end.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  return `until ${isToday ? time : `${end.toLocaleDateString()} ${time}`}`;
}
