//! `dormouse queue promote`.

use clap::Args;
use serde_json::json;

use super::client::says;
use super::program::{CommandError, Result};
use super::session::Session;
use super::show;

/// Make delayed jobs ready now
#[derive(Args)]
pub struct PromoteArgs {
    /// The queue of the delayed jobs
    queue: String,
    /// The ids of the jobs
    #[arg(required_unless_present = "key", value_name = "ID")]
    jobs: Vec<String>,
    /// The job with this key
    #[arg(long, conflicts_with = "jobs")]
    key: Option<String>,
}

impl Session {
    pub fn promote(&self, args: PromoteArgs) -> Result<()> {
        let PromoteArgs { queue, jobs, key } = args;
        if let Some(key) = key {
            return self.answer(self.at(&queue).to("key").to(&key).to("promote").post(""));
        }
        let (mut promoted, mut refused) = (0, Vec::new());
        for job in &jobs {
            let call = self.at(&queue).to("job").to(job).to("promote").post("");
            let (status, text) = self.client.exchange(call)?;
            match status.as_u16() {
                200..=299 => promoted += 1,
                404 | 409 => refused.push(json!(job)),
                _ => return Err(CommandError::NotDone(format!("{job}: {}", says(&text)))),
            }
        }
        let all = json!({"promoted": promoted, "refused": refused});
        self.show(&all, || show::fields(&all))?;
        match refused.len() {
            0 => Ok(()),
            some => {
                let of = jobs.len();
                Err(CommandError::NotDone(format!("{some} of {of} jobs are not delayed or do not exist")))
            }
        }
    }
}
