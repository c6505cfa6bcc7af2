//! `dormouse queue consume`, `ack` and `cancel`: the work of a worker, by hand.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use super::durations::seconds;
use super::program::{CommandError, Result};
use super::session::Session;
use super::show;

#[derive(Subcommand)]
pub enum JobCommand {
    /// Get the next job of a queue, as a worker does. It is yours until its ttr ends; `ack` it when it is done
    Consume {
        /// The queue, or several, separated by commas, in order of preference
        queue: String,
        /// Time until the job is delivered again unless it is acked: 30s, 5m, 2h [default: the server's TTRSecond]
        #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        ttr: Option<String>,
        /// How long to wait for a job, up to 10m
        #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        timeout: Option<String>,
        /// Maximum number of jobs
        #[arg(long, value_name = "COUNT")]
        count: Option<u32>,
    },
    /// Acknowledge jobs that are done, which deletes them
    Ack {
        /// The queue of the jobs
        queue: String,
        /// The ids of the jobs
        #[arg(required = true, value_name = "ID")]
        jobs: Vec<String>,
        /// The receipt that `consume` printed: the job is acked only while it is still yours
        #[arg(long)]
        receipt: Option<String>,
    },
    /// Delete jobs that should not run any more, in any state
    Cancel {
        /// The queue of the jobs
        queue: String,
        /// The ids of the jobs
        #[arg(required_unless_present = "key", conflicts_with = "key", value_name = "ID")]
        jobs: Vec<String>,
        /// Delete the job with this key instead
        #[arg(long)]
        key: Option<String>,
    },
}

impl Session {
    pub fn work(&self, command: JobCommand) -> Result<()> {
        match command {
            JobCommand::Consume { queue, ttr, timeout, count } => self.consume(&queue, ttr, timeout, count),
            JobCommand::Ack { queue, jobs, receipt } => self.ack(&queue, &jobs, receipt),
            JobCommand::Cancel { queue, key: Some(key), .. } => {
                self.client.send(self.at(&queue).to("key").to(&key).delete())?;
                let done = json!({"cancelled": 1});
                self.show(&done, || show::fields(&done))
            }
            JobCommand::Cancel { queue, jobs, key: None } => {
                let acked = self.ack_all(&queue, jobs.iter().map(|id| json!(id)).collect())?;
                let done = json!({"cancelled": acked["acked"]});
                self.show(&done, || show::fields(&done))
            }
        }
    }

    fn consume(
        &self,
        queue: &str,
        ttr: Option<String>,
        timeout: Option<String>,
        count: Option<u32>,
    ) -> Result<()> {
        let wait = timeout.as_deref().and_then(|timeout| timeout.parse::<f64>().ok()).unwrap_or(0.0);
        let count = count.map(|count| count.to_string());
        let query = [("ttr", ttr), ("timeout", timeout), ("count", count), ("receipt", Some("1".to_owned()))];
        let call = self.at(queue).with(query).patient(Duration::from_secs_f64(wait.clamp(0.0, 3600.0)));
        let (status, text) = self.client.exchange(call)?;
        if status == hyper::StatusCode::NOT_FOUND {
            return Err(CommandError::NotDone(format!("no job of {}/{queue} is ready", self.namespace)));
        }
        let answer = self.client.answered(status, &text)?;
        self.show(&answer, || match answer.as_array() {
            Some(jobs) => jobs.iter().map(show::fields).collect::<Vec<_>>().join("\n\n"),
            None => show::fields(&answer),
        })
    }

    fn ack(&self, queue: &str, jobs: &[String], receipt: Option<String>) -> Result<()> {
        if receipt.is_some() && jobs.len() > 1 {
            return Err(CommandError::Usage("--receipt applies to one job only".to_owned()));
        }
        let named = |id: &String| match &receipt {
            Some(receipt) => json!({"id": id, "receipt": receipt}),
            None => json!(id),
        };
        let done = self.ack_all(queue, jobs.iter().map(named).collect())?;
        self.show(&done, || show::fields(&done))?;
        match done["stale"].as_array().map_or(0, Vec::len) {
            0 => Ok(()),
            _ => Err(CommandError::NotDone("the job is no longer yours: its receipt is stale".to_owned())),
        }
    }

    fn ack_all(&self, queue: &str, jobs: Vec<Value>) -> Result<Value> {
        self.client.json(self.at(queue).to("ack").post(json!({"jobs": jobs}).to_string()))
    }
}
