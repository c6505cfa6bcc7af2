//! A consume as a dispatcher makes it.

use std::time::Duration;

use dormouse::engine::Engine;
use dormouse::error::Result;
use dormouse::job::Job;
use dormouse::name::QueueList;

/// Consumes up to one job per ttr. Retries, like a dispatcher, while the engine says that there may be more.
pub async fn consume(engine: &dyn Engine, queues: &QueueList, ttrs: &[Duration]) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for _ in 0..1000 {
        let asked = &ttrs[jobs.len()..];
        let consumed = engine.consume(queues, asked).await?;
        assert!(consumed.jobs.len() <= asked.len(), "asked for {}, got {:?}", asked.len(), consumed.jobs);
        jobs.extend(consumed.jobs);
        if jobs.len() == ttrs.len() || !consumed.more {
            return Ok(jobs);
        }
    }
    panic!("the engine says without end that {queues:?} may have more");
}
