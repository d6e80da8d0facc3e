// @ts-check
// One client of the kernel's mesh view: greets, pings, asks, and greets again when something was missed.
// Rule of the file: each question ends, with its answer or with a sentence; no DOM.

import { Model } from './model.js';
import { parse, runs } from './protocol.js';

/**
 * @typedef {{send(message: object): void, listen(listener: (message: unknown) => void): () => void}} Transport
 * @typedef {"opening" | "live" | "lost"} ConnectionState
 * @typedef {{period_ms?: number, parts?: string[], mesh?: string | null}} ConnectionOptions
 * @typedef {{message: Record<string, any>, resolve(value: any): void, reject(error: Error): void, timer: ReturnType<typeof setTimeout>}} Pending
 * @typedef {{mesh: string, ranks: string | null, after: number | null, listener(lines: import("./protocol.js").LogLine[], skipped: number): void}} Follower
 */

const PING_MS = 10_000;
const SILENCE_MS = 15_000; // no news for so long: the next ping is a hello, which must be answered
const ANSWER_MS = 10_000;
const ASK_MS = 20_000;
const TALK_MS = 5_000;
const DO_MS = 180_000; // new processes load torch

/** A view's way to the kernel; several views may share one. */
export class Connection {
  /** @param {Transport} transport @param {ConnectionOptions} [options] */
  constructor(transport, options = {}) {
    this.transport = transport;
    this.period = options.period_ms ?? 100;
    this.parts = options.parts ?? ['strips', 'curves', 'failures', 'actors'];
    this.mesh = options.mesh ?? null;
    this.model = new Model();
    /** @type {ConnectionState} */
    this.state = 'opening';
    /** Why it is lost, a sentence. */
    this.why = '';
    this.name = randomName();
    this.nextId = 1;
    /** @type {Map<number, Pending>} */
    this.pending = new Map();
    /** @type {Map<object, number | null>} */
    this.paces = new Map();
    /** @type {Set<Follower>} */
    this.followers = new Set();
    /** @type {Map<number, (said: import("./protocol.js").SessionMessage) => void>} */
    this.sessions = new Map();
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.pinging = undefined;
    /** When the hello that has no answer yet was said. @type {number | null} */
    this.greeted = null;
    this.heard = 0;
    /** @type {() => void} */
    this.unlisten = () => {};
  }

  /** @param {() => void} listener @returns {() => void} undo */
  onState(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Listen, and greet if anybody looks. */
  open() {
    this.unlisten();
    this.unlisten = this.transport.listen(message => this.receive(message));
    if (this.wanted() !== null) this.hello();
  }

  /** Begin again, over another transport if one is given; open questions are asked again. @param {Transport} [transport] */
  reopen(transport = this.transport) {
    this.unlisten();
    this.transport = transport;
    this.setState('opening');
    this.open();
    for (const { message } of this.pending.values()) this.send(message);
    for (const follower of this.followers) this.sendFollow(follower, true);
  }

  /** Say goodbye and stop. */
  close() {
    this.rest();
    this.unlisten();
    this.unlisten = () => {};
    this.failPending('the view was closed', () => true);
    this.followers.clear();
  }

  /** The transport is gone, for the reason given. @param {string} why */
  lost(why) {
    this.greeted = null;
    clearInterval(this.pinging);
    this.pinging = undefined;
    this.setState('lost', why);
    const sentence = `${why}: no answer came; look at the mesh before you do it again`;
    this.failPending(sentence, message => message.type === 'do');
  }

  /**
   * How often this viewer wants news; null: nobody looks. Without viewers the option `period_ms` counts.
   * @param {object} viewer
   * @param {number | null | undefined} period_ms undefined: this viewer is gone
   */
  pace(viewer, period_ms) {
    const before = this.wanted();
    if (period_ms === undefined) this.paces.delete(viewer);
    else this.paces.set(viewer, period_ms);
    const wanted = this.wanted();
    if (wanted === before || this.state === 'lost') return;
    if (wanted === null) this.rest();
    else this.hello();
  }

  /** @returns {number | null} */
  wanted() {
    const periods = [...this.paces.values()].filter(period => period !== null);
    if (this.paces.size) return periods.length ? Math.min(...periods) : null;
    return this.period;
  }

  rest() {
    clearInterval(this.pinging);
    this.pinging = undefined;
    this.greeted = null;
    this.send({ type: 'bye' });
  }

  hello() {
    this.greeted = performance.now();
    this.heard = this.greeted;
    const period_ms = this.wanted() ?? this.period;
    this.send({ type: 'hello', period_ms, parts: this.parts, mesh: this.mesh });
    this.pinging ??= setInterval(() => this.ping(), PING_MS);
  }

  ping() {
    const now = performance.now();
    if (this.greeted !== null && now - this.greeted >= ANSWER_MS - 100) {
      this.setState('lost', 'the kernel does not answer, it may be busy: trying again');
      this.hello();
    } else if (now - this.heard > SILENCE_MS) this.hello();
    else this.send({ type: 'ping' });
  }

  /** @param {Record<string, any>} message */
  send(message) {
    try {
      this.transport.send({ v: 1, from: this.name, ...message });
    } catch (error) {
      if (message.type !== 'bye') this.setState('lost', `nothing can be sent: ${error}`);
    }
  }

  /**
   * @param {string} what
   * @param {Record<string, any>} [args]
   * @returns {Promise<any>} the value; an Error with a sentence
   */
  ask(what, args = {}) {
    return this.request('ask', what, args, ASK_MS);
  }

  /**
   * @param {string} what
   * @param {Record<string, any>} [args]
   * @returns {Promise<{said: string}>} an Error with a sentence
   */
  do(what, args = {}) {
    return this.request('do', what, args, DO_MS);
  }

  /** @param {string} type @param {string} what @param {Record<string, any>} args @param {number} limit */
  request(type, what, args, limit) {
    if (this.state === 'lost' && type === 'do') return Promise.reject(new Error(this.why));
    const id = this.nextId++;
    const message = { ...args, type, id, what };
    return new Promise((resolve, reject) => {
      const late = `the kernel has not answered "${what}" in ${limit / 1000} s; it may be busy`;
      const timer = setTimeout(() => this.settle(id, false, late), limit);
      this.pending.set(id, { message, resolve, reject, timer });
      this.send(message);
    });
  }

  /** @param {number} id @param {boolean} ok @param {any} value */
  settle(id, ok, value) {
    const pending = this.pending.get(id);
    if (!pending) return;
    this.pending.delete(id);
    clearTimeout(pending.timer);
    if (ok) pending.resolve(value);
    else pending.reject(new Error(String(value ?? 'the kernel has refused')));
  }

  /** @param {string} why @param {(message: Record<string, any>) => boolean} which */
  failPending(why, which) {
    for (const [id, { message }] of [...this.pending]) {
      if (which(message)) this.settle(id, false, why);
    }
  }

  /**
   * New log lines, as they come.
   * @param {string} mesh
   * @param {string | null} ranks runs, null: all
   * @param {number | null} after the last line seen
   * @param {Follower["listener"]} listener
   * @returns {() => void} undo
   */
  follow(mesh, ranks, after, listener) {
    const follower = { mesh, ranks, after, listener };
    this.followers.add(follower);
    this.sendFollow(follower, true);
    return () => {
      if (this.followers.delete(follower)) this.sendFollow(follower, false);
    };
  }

  /**
   * A debugger's prompt in the kernel, as long as it is not closed.
   * @param {{mesh: string, rank: number, failed: boolean}} wish
   * @param {(said: import("./protocol.js").SessionMessage) => void} listener
   */
  session(wish, listener) {
    const session = this.nextId;
    this.sessions.set(session, listener);
    this.pace(listener, TALK_MS); // who is silent is forgotten
    /** @param {string} what @param {string} line */
    const args = (what, line) => /** @type {[string, object]} */ ([what, { session, line }]);
    return {
      opened: this.do('debug', { ...wish, session }),
      do: (/** @type {string} */ what, /** @type {string} */ line) => this.do(...args(what, line)),
      ask: (/** @type {string} */ what, /** @type {string} */ line) =>
        this.ask(...args(what, line)),
      close: () => {
        if (!this.sessions.delete(session)) return;
        this.pace(listener, undefined);
        this.do('leave', { session }).catch(() => {}); // then nobody is there to be told
      }
    };
  }

  /** @param {Follower} follower @param {boolean} on */
  sendFollow({ mesh, ranks, after }, on) {
    this.send({ type: 'follow', mesh, ranks, on, after });
  }

  /** @param {unknown} data */
  receive(data) {
    const message = parse(data);
    if (typeof message === 'string') return this.setState('lost', message);
    this.heard = performance.now();
    if ('to' in message && message.to !== this.name) return;
    if (message.type === 'state' || message.type === 'delta') this.update(message);
    else if (message.type === 'log') this.deliver(message);
    else if (message.type === 'session') this.sessions.get(message.session)?.(message);
    else if (message.type === 'answer') {
      this.settle(message.id, message.ok, message.ok ? message.value : message.error);
    } else this.setState(this.state === 'live' ? 'live' : 'lost', message.error);
  }

  /** @param {import("./protocol.js").StateMessage | import("./protocol.js").DeltaMessage} message */
  update(message) {
    if (this.pinging === undefined) return; // it rests, or is lost: these are for other views
    if (message.type === 'state') this.greeted = null;
    const result = this.model.apply(message);
    if (message.type === 'state' || this.state !== 'live') this.setState('live');
    else if (result === 'stale' && this.greeted === null) this.hello();
  }

  /** @param {import("./protocol.js").LogMessage} message */
  deliver({ lines, skipped }) {
    for (const follower of this.followers) {
      const wanted = follower.ranks === null ? null : new Set(runs(follower.ranks));
      const news = lines.filter(
        ([seq, mesh, rank]) =>
          mesh === follower.mesh &&
          seq > (follower.after ?? -1) &&
          (wanted === null || wanted.has(rank))
      );
      if (news.length) follower.after = news[news.length - 1][0];
      if (news.length || skipped) follower.listener(news, skipped);
    }
  }

  /** @param {ConnectionState} state @param {string} [why] */
  setState(state, why = '') {
    if (state === this.state && why === this.why) return;
    this.state = state;
    this.why = why;
    for (const listener of [...this.listeners]) listener();
  }
}

function randomName() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('');
}
