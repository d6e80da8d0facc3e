// A kernel that is none: it answers a mesh view's messages in the page, from a state that the test or the demo sets.

import { runs, runsText } from '/monarch_nb/notebook/view/front/data/protocol.js';

const TRACE = `Traceback (most recent call last):
  Cell In[7], line 12, in train(steps)
     10     for step in range(steps):
     11         loss = model(batch).mean()
---> 12         loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB`;

export class FakeKernel {
  constructor(labels, sizes) {
    this.labels = labels;
    this.sizes = sizes;
    this.size = sizes.reduce((a, b) => a * b, 1);
    this.states = new Array(this.size).fill('idle');
    this.whats = new Array(this.size).fill('');
    this.details = new Array(this.size).fill('');
    this.sinces = new Array(this.size).fill(240_000);
    this.strips = new Array(this.size).fill('');
    this.failures = [];
    this.curves = {};
    this.actors = [];
    this.seconds = 300;
    this.n = 1;
    this.began = performance.now() - 300_000;
    this.sent = [];
    this.answers = {};
    this.listeners = new Set();
    this.transport = {
      send: message => this.receive(message),
      listen: listener => {
        this.listeners.add(listener);
        return () => this.listeners.delete(listener);
      }
    };
  }

  get at() {
    return Math.round(performance.now() - this.began);
  }

  set(ranks, state, what = '', since = this.at, detail = '') {
    for (const rank of ranks) {
      this.states[rank] = state;
      this.whats[rank] = what;
      this.details[rank] = detail;
      this.sinces[rank] = since;
    }
  }

  receive(message) {
    this.sent.push(message);
    if (message.type === 'hello') this.tell(this.state(message.from));
    if (message.type === 'ask' || message.type === 'do') {
      const value = this.answer(message);
      const told =
        value instanceof Error ? { ok: false, error: value.message } : { ok: true, value };
      this.tell({ v: 1, type: 'answer', to: message.from, id: message.id, ...told });
    }
  }

  tell(message) {
    const copy = JSON.parse(JSON.stringify(message));
    queueMicrotask(() => this.listeners.forEach(listener => listener(copy)));
  }

  rows(ranks) {
    const groups = new Map();
    for (const rank of ranks) {
      const key = JSON.stringify([this.states[rank], this.whats[rank], this.details[rank]]);
      groups.set(key, [...(groups.get(key) ?? []), rank]);
    }
    return [...groups].map(([key, members]) => [
      runsText(members),
      ...JSON.parse(key),
      members.map(rank => this.sinces[rank])
    ]);
  }

  state(to) {
    const all = Array.from({ length: this.size }, (_, rank) => rank);
    const half = this.size >> 1;
    const mesh = {
      labels: this.labels,
      sizes: this.sizes,
      ended: null,
      hosts: [
        [runsText(all.slice(0, half)), 0],
        [runsText(all.slice(half)), 1]
      ],
      pids: all.map(rank => 41000 + rank),
      ranks: this.rows(all),
      usage: this.usage(all),
      strips: this.strips,
      failures: this.failures,
      curves: this.curves,
      actors: this.actors
    };
    const hosts = [
      { name: 'node-a', ended: null },
      { name: 'node-b', ended: null }
    ];
    const { n, at, seconds } = this;
    return { v: 1, type: 'state', to, n, at, seconds, hosts, meshes: { train: mesh }, cell: null };
  }

  usage(ranks) {
    const load = rank =>
      this.states[rank] === 'busy' ? 70 + ((rank * 37 + this.seconds) % 30) : 3;
    return {
      ranks: runsText(ranks),
      cpu: ranks.map(rank => load(rank) - 2),
      rss: ranks.map(rank => 2100 + rank),
      gpu: ranks.map(load),
      gpu_mem: ranks.map(rank => 41200 + rank * 3),
      queue: ranks.map(rank => (rank === 2 ? 3 : 0)),
      calls: ranks.map(() => this.seconds * 4),
      failed: ranks.map(rank => (this.states[rank] === 'failed' ? 1 : 0)),
      beat: ranks.map(() => this.seconds)
    };
  }

  delta(part, more = {}) {
    const base = this.n++;
    this.tell({
      v: 1,
      type: 'delta',
      base,
      n: this.n,
      at: this.at,
      meshes: { train: part },
      ...more
    });
  }

  /** Ranks change, and it is told. */
  change(ranks, state) {
    this.set(ranks, state);
    this.delta({ ranks: this.rows(ranks) });
  }

  second(letters) {
    this.seconds++;
    this.strips = this.strips.map((strip, rank) => (strip + letters[rank]).slice(-300));
    const all = Array.from({ length: this.size }, (_, rank) => rank);
    this.delta({ strip: letters.join(''), usage: this.usage(all) }, { seconds: this.seconds });
  }

  answer({ what, type, rank, ranks, name, failure }) {
    if (what === 'failure' && !this.failures.some(({ id }) => id === failure))
      return new Error(`there is no failure ${failure}`);
    if (what in this.answers) return this.answers[what];
    if (type === 'do') return { said: `${what}: rank ${ranks ?? 'all'} of train` };
    if (what === 'failure') return { text: TRACE };
    if (what === 'stacks')
      return {
        stacks: [{ ranks, text: 'train.py:41 in forward\ntrain.py:88 in step' }],
        silent: ''
      };
    if (what === 'metrics') return { csv: 'run,run_number,name,rank,step,value\n', left_out: 0 };
    if (what === 'curve') return { points: this.curves[name].points.map(([s, m]) => [s, m * 1.1]) };
    if (what !== 'rank') return new Error(`the kernel does not know the question ${what}`);
    const failed = ['failed', 'exited'].includes(this.states[rank]);
    return {
      rank,
      actors: [
        { name: 'trainer', cls: 'Trainer', calls: 812, failed: 0, queue: 2, current: 'step' },
        { name: 'loader', cls: 'Loader', calls: 1630, failed: 0, queue: 0, current: null }
      ],
      error: failed
        ? {
            headline: 'OutOfMemoryError: CUDA out of memory',
            text: TRACE,
            what: 'cell In[7]',
            at: this.at - 65_000
          }
        : null,
      lines:
        this.lines ??
        Array.from({ length: 8 }, (_, i) => `step ${410 + i} loss ${(2.31 - i / 50).toFixed(3)}`),
      queue: 2
    };
  }
}

/** A rank's last seconds: busy most of the time, with collectives. */
function stripOf(rank, end = '', start = 300) {
  const letters = [];
  for (let s = 0; s < start - end.length; s++) {
    const phase = (s + (rank % 8 === 5 ? 3 : 0)) % 20;
    if (s < 12) letters.push('s');
    else if (s < 40) letters.push('0');
    else if (phase < 3) letters.push('c');
    else letters.push(String(Math.min(9, 5 + ((rank * 7 + s) % 5))));
  }
  return letters.join('') + end;
}

function curve(height, steps, fall) {
  return Array.from({ length: steps }, (_, i) => {
    const mean = height * Math.exp(-i / fall) + Math.sin(i * 1.7) * height * 0.02 + 0.2;
    if (i === 40) return [i * 10, NaN, NaN, NaN, 0];
    return [i * 10, mean, mean * 0.9 - 0.03, mean * 1.12 + 0.05, 8];
  });
}

const HOSTILE = `<img src=x onerror="window.hacked=1">\u001b[31mred\u001b[0m <script>window.hacked=1</script> `;

/** Worlds that the demo shows and the tests look at. */
export const WORLDS = {
  empty: () => new FakeKernel(['gpus'], [0]),
  one: () => new FakeKernel(['gpus'], [1]),
  eight() {
    const kernel = new FakeKernel(['gpus'], [8]);
    const began = kernel.at - 64_000;
    kernel.set([0, 1, 3, 4, 6], 'busy', 'cell In[7]', began);
    kernel.set([5], 'collective', 'all_reduce in cell In[7]', kernel.at - 31_000);
    kernel.set(
      [2],
      'exited',
      'cell In[7]',
      kernel.at - 65_000,
      'OutOfMemoryError: CUDA out of memory'
    );
    kernel.set([7], 'silent', 'cell In[7]', kernel.at - 9_000);
    kernel.strips = kernel.strips.map((_, r) =>
      stripOf(r, { 2: 'x'.repeat(65), 7: 'z'.repeat(9), 5: 'c'.repeat(31) }[r])
    );
    kernel.failures = [
      {
        id: 2,
        ranks: '2',
        headline: 'OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB',
        where: 'train.py, line 12',
        what: 'cell In[7]',
        at: kernel.at - 65_000,
        count: 1
      },
      {
        id: 1,
        ranks: '0-7',
        headline: "NameError: name 'modle' is not defined",
        where: 'cell In[5], line 3',
        what: 'cell In[5]',
        at: kernel.at - 161_000,
        count: 8
      }
    ];
    kernel.curves = {
      loss: { from: 0, points: curve(2.4, 120, 40) },
      'learning rate': {
        from: 0,
        points: curve(0.003, 120, 60).map(([s, m]) => [s, m / 100, m / 100, m / 100, 8])
      },
      'tokens/s': {
        from: 0,
        points: curve(1, 120, 60).map(([s, m]) => [
          s,
          9e4 - m * 2e4,
          8.6e4 - m * 2e4,
          9.3e4 - m * 2e4,
          8
        ])
      }
    };
    return kernel;
  },
  states() {
    const kernel = new FakeKernel(['gpus'], [11]);
    const names =
      'idle busy collective starting paused silent leaving stopped exited unreachable failed';
    names.split(' ').forEach((state, rank) => kernel.set([rank], state, `as ${state}`));
    return kernel;
  },
  hosts() {
    const kernel = new FakeKernel(['hosts', 'gpus'], [8, 8]);
    const all = Array.from({ length: 64 }, (_, rank) => rank);
    kernel.set(all, 'busy', 'Trainer.step', kernel.at - 4_200);
    kernel.set(all.slice(40, 48), 'unreachable', '', kernel.at - 20_000, 'node-b does not answer');
    kernel.set([3, 11, 19], 'collective', 'all_reduce', kernel.at - 2_000);
    kernel.set([60], 'paused', 'breakpoint at train.py:41', kernel.at - 12_000);
    kernel.set([23], 'exited', '', kernel.at - 90_000, 'SIGKILL; out of memory?');
    kernel.strips = all.map(r =>
      stripOf(r, r >= 40 && r < 48 ? 'x'.repeat(20) : r === 23 ? 'x'.repeat(90) : '')
    );
    return kernel;
  },
  thousand() {
    const kernel = new FakeKernel(['pods', 'hosts', 'gpus'], [8, 16, 8]);
    const all = Array.from({ length: 1024 }, (_, rank) => rank);
    kernel.set(all, 'busy', 'Trainer.step', kernel.at - 4_200);
    kernel.set(
      all.filter(rank => rank % 11 === 0),
      'collective',
      'all_reduce',
      kernel.at - 2_000
    );
    kernel.set([200, 717], 'exited', '', kernel.at - 90_000, 'SIGKILL');
    kernel.set([300], 'silent', '', kernel.at - 9_000);
    kernel.strips = all.map(r => stripOf(r, r === 717 || r === 200 ? 'x'.repeat(90) : ''));
    return kernel;
  },
  hostile() {
    const kernel = new FakeKernel([HOSTILE, 'gpus'], [2, 4]);
    const long = HOSTILE + 'A'.repeat(10_000_000);
    kernel.set([0, 1, 2, 3, 4, 5, 6, 7], 'busy', HOSTILE);
    kernel.set([1], 'failed', long, kernel.at - 1000, long);
    kernel.lines = [long, HOSTILE];
    kernel.failures = [
      { id: 1, ranks: '1', headline: long, where: HOSTILE, what: HOSTILE, at: kernel.at, count: 1 }
    ];
    kernel.answers.failure = { text: long };
    kernel.curves = { [HOSTILE]: { from: 0, points: curve(1, 20, 10) } };
    kernel.strips = kernel.strips.map(() => HOSTILE);
    return kernel;
  }
};

/** Go on as a training does: everybody changes now and then, ten times a second. */
export function live(kernel) {
  let turn = 0;
  return setInterval(() => {
    turn++;
    const changed = kernel.states
      .map((state, rank) => (state === 'busy' || state === 'collective' ? rank : -1))
      .filter(rank => rank >= 0 && (rank + turn) % 5 === 0);
    const busy = changed.filter(rank => kernel.states[rank] === 'busy');
    const waiting = changed.filter(rank => kernel.states[rank] === 'collective');
    kernel.set(busy, 'collective', 'all_reduce');
    kernel.set(waiting, 'busy', 'Trainer.step');
    kernel.delta({ ranks: kernel.rows(changed) });
    if (turn % 10 === 0) {
      kernel.second(
        kernel.states.map(
          state => ({ busy: '8', collective: 'c', silent: 'z', idle: '0' })[state] ?? 'x'
        )
      );
    }
  }, 100);
}

export { runs };
