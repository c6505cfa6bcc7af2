//! Commands of `dormouse queue` that use the admin port without a token: queues by need, their history, dead jobs and
//! their reasons, and bulk actions.

use std::thread::sleep;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

use super::client::HttpCall;
use super::program::{CommandError, Result};
use super::session::Session;
use super::show;

/// Interval between progress checks of an action.
const STEP: Duration = Duration::from_millis(300);

/// Option for the pool.
#[derive(Args)]
pub struct OfPool {
    /// The pool [default: default]
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}

#[derive(Subcommand)]
pub enum OperatorCommand {
    /// Show the recent history of a queue, or of all queues together (admin port)
    History {
        /// The queue [default: all queues together]
        queue: Option<String>,
        /// The last hour, or the last day
        #[arg(long, value_enum, default_value_t = Range::Hour)]
        range: Range,
        /// Number of steps to show, ending with the latest
        #[arg(long, value_name = "COUNT", default_value_t = 30)]
        limit: usize,
        #[command(flatten)]
        of: OfPool,
    },
    /// List queues with dead jobs; for one queue, show why they died (admin port)
    Dead {
        /// The queue [default: all queues with dead jobs]
        queue: Option<String>,
        #[command(flatten)]
        of: OfPool,
    },
    /// Delete all jobs of a queue that are ready, delayed or dead. Running ones stay (admin port)
    Destroy {
        /// The queue whose jobs are destroyed
        queue: String,
        /// State of the jobs; may be repeated
        #[arg(long, value_enum, required = true, value_name = "STATE")]
        state: Vec<Destroyed>,
        /// Confirm
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        of: OfPool,
    },
    /// Show bulk actions on jobs of queues: running and recent ones (admin port)
    Bulk {
        /// Show only this action
        id: Option<String>,
        /// Stop it
        #[arg(long, requires = "id")]
        stop: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Range {
    Hour,
    Day,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Destroyed {
    Ready,
    Delayed,
    Dead,
}

fn word(value: impl ValueEnum) -> Option<String> {
    value.to_possible_value().map(|value| value.get_name().to_owned())
}

impl OperatorCommand {
    /// Whether the command applies to one queue, and so needs a namespace.
    pub fn needs_namespace(&self) -> bool {
        match self {
            OperatorCommand::History { queue, .. } | OperatorCommand::Dead { queue, .. } => queue.is_some(),
            OperatorCommand::Destroy { .. } => true,
            OperatorCommand::Bulk { .. } => false,
        }
    }
}

impl Session {
    /// Lists the queues of one or all namespaces by need.
    pub fn list_by_need(&self, need: Option<String>, limit: usize) -> Result<()> {
        let call =
            HttpCall::get().to("queues").with([("need", need), ("namespace", self.namespace_if_given())]);
        let queues = self.pages_of(&self.admin_client()?, &call, "queues", limit)?;
        self.show(&json!({"queues": queues}), || show::needs(&queues))
    }

    pub fn operate(&self, command: OperatorCommand) -> Result<()> {
        match command {
            OperatorCommand::History { queue, range, limit, of } => {
                let call = HttpCall::get().to("queues").to("history").with([
                    ("pool", of.pool),
                    ("namespace", self.namespace_if_given()),
                    ("queue", queue),
                    ("range", word(range)),
                ]);
                let past = self.admin_client()?.json(call)?;
                self.show(&past, || show::history(&past, limit))
            }
            OperatorCommand::Dead { queue: None, of } => {
                let query = [("pool", of.pool), ("namespace", self.namespace_if_given())];
                let call = HttpCall::get().to("dead").with(query);
                let queues = self.pages_of(&self.admin_client()?, &call, "queues", usize::MAX)?;
                self.show(&json!({"queues": queues}), || show::dead(&queues))
            }
            OperatorCommand::Dead { queue, of } => {
                let query = [("pool", of.pool), ("namespace", self.namespace_if_given()), ("queue", queue)];
                let reasons =
                    self.admin_client()?.json(HttpCall::get().to("dead").to("reasons").with(query))?;
                self.show(&reasons, || show::reasons(&reasons))
            }
            OperatorCommand::Destroy { queue, state, yes, of } => self.destroy(&queue, &state, yes, of),
            OperatorCommand::Bulk { id: None, .. } => {
                let all = self.admin_client()?.json(HttpCall::get().to("bulk"))?;
                self.show(&all, || show::actions(all["actions"].as_array().map_or(&[], Vec::as_slice)))
            }
            OperatorCommand::Bulk { id: Some(id), stop } => {
                let call = HttpCall::get().to("bulk").to(&id);
                let action = self.admin_client()?.json(if stop { call.delete() } else { call })?;
                self.show(&action, || show::fields(&action))
            }
        }
    }

    /// Respawns all dead jobs of a queue, or those with one reason, and waits for the end.
    pub fn respawn_all(&self, queue: &str, given: Vec<(&'static str, Value)>, of: OfPool) -> Result<()> {
        let mut order = Map::new();
        order.extend(given.into_iter().map(|(key, value)| (key.to_owned(), value)));
        order.insert("action".to_owned(), json!("respawn"));
        let action = self.order(queue, order, &of)?;
        self.show(&action, || show::fields(&action))?;
        done(&action)
    }

    fn destroy(&self, queue: &str, states: &[Destroyed], yes: bool, of: OfPool) -> Result<()> {
        if !yes {
            let names: Vec<String> = states.iter().filter_map(|state| word(*state)).collect();
            return Err(CommandError::Usage(format!(
                "this deletes the {} jobs of {}/{queue}; repeat it with --yes",
                names.join(" and "),
                self.namespace
            )));
        }
        let mut actions = Vec::new();
        for state in states {
            let mut order = Map::new();
            let action = if *state == Destroyed::Dead { "delete" } else { "cancel" };
            order.insert("action".to_owned(), json!(action));
            order.insert("state".to_owned(), json!(word(*state)));
            actions.push(self.order(queue, order, &of)?);
        }
        self.show(&json!({"actions": actions}), || show::actions(&actions))?;
        actions.iter().try_for_each(done)
    }

    /// Starts a bulk action, and waits for its end. It continues if this program is killed.
    fn order(&self, queue: &str, mut order: Map<String, Value>, of: &OfPool) -> Result<Value> {
        order.insert("namespace".to_owned(), json!(self.namespace));
        order.insert("queue".to_owned(), json!(queue));
        if let Some(pool) = &of.pool {
            order.insert("pool".to_owned(), json!(pool));
        }
        let client = self.admin_client()?;
        let begun = client.json(HttpCall::get().to("bulk").post(Value::Object(order).to_string()))?;
        let id = begun["id"].as_str().unwrap_or_default();
        loop {
            let action = client.json(HttpCall::get().to("bulk").to(id))?;
            if action["ended"].is_string() {
                return Ok(action);
            }
            sleep(STEP);
        }
    }
}

/// Returns an error if an action was not completed.
fn done(action: &Value) -> Result<()> {
    match (action["status"].as_str(), action["why"].as_str()) {
        (Some("done"), _) => Ok(()),
        (status, why) => Err(CommandError::NotDone(format!(
            "the action has {}: {}",
            status.unwrap_or("ended"),
            why.unwrap_or_default()
        ))),
    }
}
