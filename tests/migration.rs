//! A pool that is moved while one of its stores is away. What both do when they are well is in the laws.

mod support;

use std::sync::Arc;
use std::time::Duration;

use dormouse::engine::Engine;
use dormouse::engine::migration::Migration;
use support::gated::Gated;
use support::model::ModelEngine;
use support::stage::{Stage, VirtualStage, bodies, consume, job, manual_clock, ok, queue, queue_list};

const TTR: Duration = Duration::from_secs(60);

/// Two stores, and the pool that moves from the first to the second.
struct Move {
    old: Arc<Gated<ModelEngine>>,
    new: Arc<Gated<ModelEngine>>,
    pool: Arc<dyn Engine>,
    /// To publish into each.
    stages: [VirtualStage; 2],
}

impl Move {
    fn new() -> Move {
        let clock = manual_clock();
        let store = || Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        let (old, new) = (store(), store());
        let stages = [old.clone(), new.clone()].map(|engine| VirtualStage::new(engine, clock.clone(), ()));
        let pool = Arc::new(Migration::new(old.clone(), new.clone()));
        Move { old, new, pool, stages }
    }

    async fn fill(&self) {
        for (stage, body) in self.stages.iter().zip(["old", "new"]) {
            ok("publish", stage.engine().publish(vec![job(&queue("a"), body).make(stage)]).await);
        }
    }

    async fn consume(&self, count: u16) -> dormouse::error::Result<Vec<String>> {
        Ok(bodies(&consume(&*self.pool, &queue_list(&["a"]), &vec![TTR; count.into()]).await?))
    }
}

#[tokio::test]
async fn an_old_store_that_is_away_does_not_keep_the_new_ones_jobs_back() {
    let pools = Move::new();
    pools.fill().await;
    pools.old.set_away(true);
    assert_eq!(ok("consume", pools.consume(2).await), ["new"], "jobs of the store that is there");
    let none = pools.consume(2).await;
    assert!(none.is_err(), "nobody can say that there is no job: {none:?}");
    pools.old.set_away(false);
    assert_eq!(ok("consume", pools.consume(2).await), ["old"], "it is back");
}

#[tokio::test]
async fn a_new_store_that_is_away_does_not_keep_the_old_ones_jobs_back() {
    let pools = Move::new();
    pools.fill().await;
    pools.new.set_away(true);
    assert_eq!(ok("consume", pools.consume(2).await), ["old"], "jobs of the store that is there");
    assert!(pools.consume(2).await.is_err(), "nobody can say that there is no job");
}

#[tokio::test]
async fn sizes_of_both_stores_add_up() {
    let pools = Move::new();
    pools.fill().await;
    let other = job(&queue("b"), "x").make(&pools.stages[1]);
    ok("publish", pools.new.publish(vec![other]).await);
    let sizes = ok("stats", pools.pool.stats().await).queues;
    let sizes: Vec<_> = sizes.iter().map(|size| (size.queue.name.as_str(), size.ready)).collect();
    assert_eq!(sizes, [("a", 2), ("b", 1)], "ready jobs per queue");
}
