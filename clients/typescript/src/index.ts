/**
 * Publishes and handles jobs of a Dormouse server. A {@link Client} has all requests; a {@link Worker} consumes jobs,
 * extends their deliveries while handlers run, and reports the results. `dormouse-client/testing` has an in-process
 * server for tests.
 */

export { VERSION } from "./call.js";
export {
  type Acked, type CallOptions, Client, type ClientOptions, type ConsumeOptions, type DeadLetter, type ListedJob,
  type Published, type PublishOptions, type QueueInfo, type Respawned, type RespawnOptions,
} from "./client.js";
export {
  CancelledError, DormouseError, type ErrorDetails, type ErrorType, PanicError, Permanent, RetryAfter, Snooze, UncleanError,
} from "./errors.js";
export { HeldJob, Job, JobInfo, type Outcome, type Release, type Released, type State } from "./job.js";
export type { Data, JobOptions, NewJob } from "./message.js";
export { withTraceparent } from "./trace.js";
export type { Fetch, Incoming, Outgoing } from "./transport.js";
export { SignatureError, type SignatureFault, verify, type VerifyHeaders } from "./verify.js";
export {
  type Context, type Finished, type Handler, type Hooks, type Logger, type Middleware, Worker, type WorkerOptions,
} from "./worker.js";
