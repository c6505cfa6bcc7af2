/** Collects the acks of a queue for a short time, and sends them together. */

import { ackSome } from "./client.js";
import type { DormouseError } from "./errors.js";
import type { Run } from "./run.js";
import { type Task, tried } from "./task.js";

/** Maximum number of jobs per request. */
const MANY = 100;

/** @internal */
export class Acks {
  readonly #waiting = new Map<string, Task[]>();

  constructor(readonly run: Run) {}

  /** Adds a task that has its job's turn. */
  add(task: Task): void {
    const { queue } = task.job;
    const waiting = this.#waiting.get(queue) ?? [];
    this.#waiting.set(queue, waiting);
    waiting.push(task);
    const { ackWindow } = this.run.settings;
    if (waiting.length >= MANY || ackWindow === 0 || this.run.stopping.aborted) this.#send(queue);
    else if (waiting.length === 1) this.run.clock.after(ackWindow, () => this.#send(queue));
  }

  /** Sends all acks without waiting for others. */
  sendAll(): void {
    for (const queue of [...this.#waiting.keys()]) this.#send(queue);
  }

  #send(queue: string): void {
    const tasks = this.#waiting.get(queue);
    this.#waiting.delete(queue);
    if (tasks) void this.#settle(queue, tasks);
  }

  /** Retries until each job is acked or lost. */
  async #settle(queue: string, tasks: Task[]): Promise<void> {
    const { caller } = this.run;
    for (let n = 0; tasks.length > 0; n++) {
      for (const task of tasks) if (task.hold.left <= 0) task.settled("lost");
      const held = tasks.filter((task) => task.hold.left > 0 && task.hold.outcome === undefined);
      if (held.length === 0) return;
      const longest = Math.max(...held.map((task) => task.hold.left));
      const bounds = { timeout: Math.min(caller.timeout, longest), retryFor: 0 };
      let { value: acked, failed } = await tried(ackSome(caller, queue, held.map((task) => task.job), bounds));
      if (failed?.type === "not_found") { // an answer that says so: they are lost
        for (const task of held) task.settled("lost");
        return;
      }
      tasks = held;
      if (acked) ({ again: tasks, failed } = await this.#sort(held, acked.stale));
      if (!failed) continue;
      const last = tasks.reduce((a, b) => (b.hold.left > a.hold.left ? b : a));
      if (await this.run.waitInTime(last.hold, n, failed)) continue;
      for (const task of tasks) task.settled("lost");
      return;
    }
  }

  /**
   * Settles the jobs that were acked or lost. Returns those whose receipt was replaced by a touch with a lost reply,
   * and the error of looking up the new one.
   */
  async #sort(held: Task[], stale: string[]): Promise<{ again: Task[]; failed: DormouseError | undefined }> {
    const again: Task[] = [];
    let error: DormouseError | undefined;
    for (const task of held) {
      if (!stale.includes(task.job.id)) {
        task.settled("acked");
      } else if (!task.hold.touchLost) {
        task.settled("lost");
      } else {
        const { value: ours, failed } = await tried(task.hold.findReceipt({ timeout: this.run.caller.timeout, retryFor: 0 }));
        error ??= failed;
        if (ours || failed) again.push(task);
        else task.settled("lost");
      }
    }
    return { again, failed: error };
  }
}
