//! Queues and jobs as tests write them: `job(&queue("q"), "body").delay(SHORT).tries(2)`.

use std::num::NonZeroU16;
use std::time::Duration;

use bytes::Bytes;
use dormouse::clock::Millis;
use dormouse::engine::{OnConflict, Placing};
use dormouse::job::{Attributes, Job, JobId, NewJob};
use dormouse::name::{JobKey, Namespace, Queue, QueueList, QueueName};

use crate::stage::Stage;

pub use crate::support::model::{Named, ms};

/// Returns the queue `name` of namespace `ns`.
pub fn queue(name: &str) -> Queue {
    queue_in("ns", name)
}

/// Returns a queue of any namespace.
pub fn queue_in(namespace: &str, name: &str) -> Queue {
    Queue {
        namespace: Namespace::parse(namespace).unwrap_or_else(|e| panic!("{namespace:?} is a name: {e}")),
        name: QueueName::parse(name).unwrap_or_else(|e| panic!("{name:?} is a name: {e}")),
    }
}

/// Returns a job key.
pub fn job_key(key: &str) -> JobKey {
    JobKey::parse(key).unwrap_or_else(|| panic!("{key:?} is a key"))
}

/// Returns queues of namespace `ns`, in order of priority.
pub fn queue_list(names: &[&str]) -> QueueList {
    let names = names.iter().map(|name| queue(name).name);
    QueueList::new(queue("x").namespace, names).expect("a test names a queue")
}

/// A job to publish: by default ready at once, without ttl, with one try.
#[derive(Clone, Debug)]
pub struct Draft {
    queue: Queue,
    body: Bytes,
    delay: Duration,
    ttl: Option<Duration>,
    tries: u16,
    versioned: bool,
    attributes: Attributes,
    at: Option<Millis>,
    key: Option<(JobKey, OnConflict)>,
}

/// Returns a draft with this body.
pub fn job(queue: &Queue, body: impl AsRef<[u8]>) -> Draft {
    Draft {
        queue: queue.clone(),
        body: Bytes::copy_from_slice(body.as_ref()),
        delay: Duration::ZERO,
        ttl: None,
        tries: 1,
        versioned: false,
        attributes: Attributes::new(),
        at: None,
        key: None,
    }
}

impl Draft {
    pub fn delay(self, delay: Duration) -> Draft {
        Draft { delay, ..self }
    }

    pub fn ttl(self, ttl: Duration) -> Draft {
        Draft { ttl: Some(ttl), ..self }
    }

    pub fn tries(self, tries: u16) -> Draft {
        Draft { tries, ..self }
    }

    /// Sets attributes, without making the id versioned.
    pub fn attributes(self, pairs: &[(&str, &str)]) -> Draft {
        Draft { attributes: pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(), ..self }
    }

    /// Sets the instant when the job is due. Requires `Engine::publish`.
    pub fn at(self, at: Millis) -> Draft {
        Draft { at: Some(at), ..self }
    }

    /// Sets the job key. Requires `Engine::publish`. A job that already holds the key stays.
    pub fn key(self, key: &str) -> Draft {
        self.key_or(key, OnConflict::Keep)
    }

    /// Like `key`, with the action if the key is taken.
    pub fn key_or(self, key: &str, on_conflict: OnConflict) -> Draft {
        Draft { key: Some((job_key(key), on_conflict)), ..self }
    }

    /// Returns the job with its key and instant, for `Engine::publish`.
    pub fn placing(self, s: &dyn Stage) -> Placing {
        let (at, key) = (self.at, self.key.clone());
        Placing { job: self.make(s), at, key }
    }

    /// Makes the id versioned.
    pub fn versioned(self) -> Draft {
        Draft { versioned: true, ..self }
    }

    /// Returns the job, with a new id.
    pub fn make(self, s: &dyn Stage) -> NewJob {
        NewJob {
            id: s.engine().make_id(s.ids(), &self.queue, self.delay, self.versioned),
            queue: self.queue,
            body: self.body,
            attributes: self.attributes,
            ttl: self.ttl,
            delay: self.delay,
            tries: NonZeroU16::new(self.tries).expect("a test gives at least one try"),
        }
    }
}

/// Returns the bodies as text, to compare with those published.
pub fn bodies(jobs: &[Job]) -> Vec<String> {
    jobs.iter().map(|job| String::from_utf8_lossy(&job.body).into_owned()).collect()
}

/// Returns the ids, in order.
pub fn ids<'a>(jobs: impl IntoIterator<Item = &'a NewJob>) -> Vec<JobId> {
    jobs.into_iter().map(|job| job.id).collect()
}
