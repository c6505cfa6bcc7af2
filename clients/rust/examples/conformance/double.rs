//! The library's own double, driven by the suite.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dormouse_client::double::Double;
use dormouse_client::{Client, Error, Event, State, StreamExt as _, Worker};
use serde_json::{Value, json};

use crate::handler::Handlers;
use crate::read::{self, Op};
use crate::{Failed, Told};

const QUEUE: &str = "q";

pub async fn run(op: &Op) -> Told {
    let double = Double::new();
    let client = double.client("double");
    let handled = Arc::new(Mutex::new(Vec::new()));
    let (handlers, told) = (Handlers::default(), handled.clone());
    let worker = Worker::new(client.clone())
        .queue(QUEUE, move |job| {
            let handlers = handlers.clone();
            async move { handlers.handle("double", job).await }
        })
        .concurrency(1)
        .backoff([Duration::from_secs(5)])
        .hook(move |happened| {
            // In the order in which handlers began: the result of one and the start of the next may cross.
            let mut told = told.lock().unwrap();
            match happened {
                Event::Start { job } => told.push((job.id.clone(), STANDARD.encode(&job.data), None)),
                Event::Finish { job, outcome, .. } => {
                    let of_job = told.iter_mut().find(|(id, _, ended)| *id == job.id && ended.is_none());
                    if let Some((_, _, ended)) = of_job {
                        *ended = Some(outcome.as_str());
                    }
                }
                _ => {}
            }
        });
    for job in op.list("jobs")? {
        client.publish(QUEUE, read::job(&Op(job))?).await?;
    }
    let ended = |e: dormouse_client::WorkerError| Failed::Wrong(e.to_string());
    double.run_until_idle(&worker).await.map_err(ended)?;
    double.advance(op.seconds("advance")?.unwrap_or_default());
    double.run_until_idle(&worker).await.map_err(ended)?;
    let handled: Vec<Value> = handled
        .lock()
        .unwrap()
        .iter()
        .map(|(_, data, outcome)| json!({ "data": data, "outcome": outcome }))
        .collect();
    Ok(json!({
        "handled": handled,
        "ready": listed(&client, State::Ready).await?,
        "delayed": listed(&client, State::Delayed).await?,
        "dead": listed(&client, State::Dead).await?,
    }))
}

async fn listed(client: &Client, state: State) -> Result<Vec<Value>, Error> {
    let mut jobs = client.jobs(QUEUE, state).data(true);
    let mut listed = Vec::new();
    while let Some(job) = jobs.next().await {
        let job = job?;
        let data = job.data.map(|data| STANDARD.encode(data));
        listed.push(json!({ "data": data, "reason": job.reason }));
    }
    Ok(listed)
}
