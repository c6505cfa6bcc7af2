//! The worker: consumes jobs, extends their deliveries while handlers run, and reports the results to the server.

mod acks;
mod hooks;
mod polls;
mod run;
mod stop;
mod work;

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

pub use hooks::{Ended, Event};
pub use stop::Stopper;

use crate::client::Client;
use crate::error::Error;
use crate::job::{Job, Outcome};
use crate::time::whole;

type Handling = Pin<Box<dyn Future<Output = Result<(), Outcome>> + Send>>;
type Handler = Arc<dyn Fn(Job) -> Handling + Send + Sync>;
type Middleware = Arc<dyn Fn(Job, Next) -> Handling + Send + Sync>;
type Hook = Arc<dyn Fn(&Event<'_>) + Send + Sync>;
type Backoff = Arc<dyn Fn(u32, &str) -> Duration + Send + Sync>;

/// The shortest `ttr`: a third of it must suffice for a touch.
const SHORTEST_TTR: Duration = Duration::from_secs(3);

/// Handles the jobs of some queues. Clones are the same worker.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use dormouse_client::{Client, Job, Outcome, Worker};
///
/// async fn mail(job: Job) -> Result<(), Outcome> {
///     let to: String = job.json()?;
///     println!("to {to}");
///     Ok(())
/// }
///
/// Worker::new(Client::from_env()?).queue("mail", mail).concurrency(20).run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Worker {
    settings: Arc<Settings>,
    stopper: Stopper,
}

#[derive(Clone)]
pub(crate) struct Settings {
    client: Client,
    handlers: Vec<(String, Handler)>,
    weights: Vec<u32>,
    concurrency: usize,
    ttr: Duration,
    poll: Duration,
    backoff: Backoff,
    time_limit: Option<Duration>,
    drain: Duration,
    grace: Duration,
    ack_window: Duration,
    middleware: Vec<Middleware>,
    hooks: Vec<Hook>,
    signals: bool,
}

impl Settings {
    fn tell(&self, event: &Event<'_>) {
        self.hooks.iter().for_each(|hook| hook(event));
    }
}

/// The rest of a middleware chain, up to the handler.
pub struct Next {
    settings: Arc<Settings>,
    at: usize,
}

impl Next {
    /// Continues with the job.
    pub async fn run(self, job: Job) -> Result<(), Outcome> {
        let Next { settings, at } = self;
        if let Some(middleware) = settings.middleware.get(at).cloned() {
            return middleware(job, Next { settings, at: at + 1 }).await;
        }
        match settings.handlers.iter().find(|(queue, _)| *queue == job.queue) {
            // Middleware sees a panic as an error.
            Some((_, handler)) => match AssertUnwindSafe(handler(job.clone())).catch_unwind().await {
                Ok(result) => result,
                Err(payload) => Err(work::panicked(&job, &*payload)),
            },
            None => Err(Outcome::Failed(format!("no handler of the queue {:?}", job.queue))),
        }
    }
}

impl Worker {
    /// Creates a worker without queues.
    pub fn new(client: Client) -> Worker {
        let seconds = Duration::from_secs;
        Worker {
            settings: Arc::new(Settings {
                client,
                handlers: Vec::new(),
                weights: Vec::new(),
                concurrency: 10,
                ttr: seconds(30),
                poll: seconds(20),
                backoff: steps([5, 30, 300, 1800, 7200].map(seconds).to_vec()),
                time_limit: None,
                drain: seconds(25),
                grace: seconds(5),
                ack_window: Duration::from_millis(5),
                middleware: Vec::new(),
                hooks: Vec::new(),
                signals: true,
            }),
            stopper: Stopper::default(),
        }
    }

    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Worker {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Adds a queue. Earlier queues take precedence.
    pub fn queue<F, R, E>(self, queue: impl Into<String>, handler: F) -> Worker
    where
        F: Fn(Job) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Outcome>,
    {
        let handler: Handler = Arc::new(move |job| {
            let handling = handler(job);
            Box::pin(async move { handling.await.map_err(Into::into) })
        });
        self.set(|settings| settings.handlers.push((queue.into(), handler)))
    }

    /// Sets the proportions of the queues: one weight per queue, in the order in which they were added.
    pub fn weights(self, weights: impl Into<Vec<u32>>) -> Worker {
        self.set(|settings| settings.weights = weights.into())
    }

    /// Maximum concurrent handlers, over all queues; 10 by default. For a limit per queue, use two workers.
    pub fn concurrency(self, handlers: usize) -> Worker {
        self.set(|settings| settings.concurrency = handlers)
    }

    /// Duration of a delivery; it is extended after each third. Whole seconds, at least 3, 30 by default.
    pub fn ttr(self, ttr: Duration) -> Worker {
        self.set(|settings| settings.ttr = ttr)
    }

    /// How long a consume waits; whole seconds, rounded up, 20 by default. It should be below the timeouts of
    /// balancers.
    pub fn poll(self, poll: Duration) -> Worker {
        self.set(|settings| settings.poll = whole(poll))
    }

    /// Delay after the 1st, 2nd … failure of a job; the last repeats. Each is varied by up to a tenth.
    pub fn backoff(self, delays: impl Into<Vec<Duration>>) -> Worker {
        self.set(|settings| settings.backoff = steps(delays.into()))
    }

    /// Sets the delay by a function of the attempt, from 1, and the text of the failure; without variation.
    pub fn backoff_by(self, delay: impl Fn(u32, &str) -> Duration + Send + Sync + 'static) -> Worker {
        self.set(|settings| settings.backoff = Arc::new(delay))
    }

    /// Maximum time of a handler; unlimited by default.
    pub fn time_limit(self, limit: Duration) -> Worker {
        self.set(|settings| settings.time_limit = Some(limit))
    }

    /// How long handlers may continue after the stop; 25 s by default.
    pub fn drain(self, drain: Duration) -> Worker {
        self.set(|settings| settings.drain = drain)
    }

    /// How long a cancelled handler may take to end; 5 s by default.
    pub fn grace(self, grace: Duration) -> Worker {
        self.set(|settings| settings.grace = grace)
    }

    /// How long an ack may wait for others; 5 ms by default.
    pub fn ack_window(self, window: Duration) -> Worker {
        self.set(|settings| settings.ack_window = window)
    }

    /// Wraps the handlers; the first one added is the outermost.
    pub fn middleware<F, R>(self, middleware: F) -> Worker
    where
        F: Fn(Job, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Outcome>> + Send + 'static,
    {
        let middleware: Middleware = Arc::new(move |job, next| Box::pin(middleware(job, next)));
        self.set(|settings| settings.middleware.push(middleware))
    }

    /// Receives events. It should return soon, since the worker waits for it.
    pub fn hook(self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Worker {
        self.set(|settings| settings.hooks.push(Arc::new(hook)))
    }

    /// Whether SIGTERM and SIGINT stop it; true by default.
    pub fn signals(self, heed: bool) -> Worker {
        self.set(|settings| settings.signals = heed)
    }

    /// Returns a handle that stops it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Runs until it is stopped by a signal or its [`Stopper`]. All acks are sent when it returns.
    pub async fn run(&self) -> Result<(), WorkerError> {
        self.check()?;
        run::run(self.settings.clone(), self.stopper.clone()).await
    }

    /// Validates its options, as `run` does.
    pub fn check(&self) -> Result<(), Error> {
        let settings = &self.settings;
        let wrong = |text: &str| Err(Error::invalid(text));
        if settings.handlers.is_empty() {
            return wrong("the worker has no queue");
        }
        if settings.concurrency == 0 {
            return wrong("concurrency should be 1 at least");
        }
        if settings.ttr < SHORTEST_TTR || settings.ttr.subsec_nanos() != 0 {
            return wrong("ttr should be whole seconds, 3 at least");
        }
        if settings.poll.is_zero() {
            return wrong("poll should be longer than 0");
        }
        if !settings.weights.is_empty() && settings.weights.len() != settings.handlers.len() {
            return wrong("there should be one weight for each queue");
        }
        Ok(())
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues: Vec<&String> = self.settings.handlers.iter().map(|(queue, _)| queue).collect();
        f.debug_struct("Worker").field("queues", &queues).finish_non_exhaustive()
    }
}

/// Uses one delay after the other; the last repeats.
fn steps(delays: Vec<Duration>) -> Backoff {
    Arc::new(move |attempt, _| {
        let at = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        let delay = delays.get(at).or(delays.last()).copied().unwrap_or(Duration::ZERO);
        crate::time::jittered(delay)
    })
}

/// Why a worker ended by itself, or not cleanly.
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkerError {
    /// A permanent error: an invalid token or name, or a server without receipts.
    Ended(Error),
    /// Number of handlers that had not returned when `grace` ended. Their jobs were returned.
    Unfinished(usize),
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerError::Ended(error) => write!(f, "the worker ended: {error}"),
            WorkerError::Unfinished(handlers) => write!(f, "{handlers} handlers had not returned in time"),
        }
    }
}

impl std::error::Error for WorkerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WorkerError::Ended(error) => Some(error),
            WorkerError::Unfinished(_) => None,
        }
    }
}

impl From<Error> for WorkerError {
    fn from(error: Error) -> WorkerError {
        WorkerError::Ended(error)
    }
}
