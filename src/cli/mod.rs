//! `dormouse queue`: inspects and repairs queues, for operators. It uses a server's public port like any client, and
//! its admin port for push and for operators' routes: it knows no store and no configuration. `tokens.rs` is the
//! other tool, token-cli.

mod backup;
mod client;
mod durations;
mod jobs;
mod operators;
mod program;
mod promote;
mod push;
mod schedules;
mod session;
mod show;
pub mod token;
pub mod tokens;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

pub use self::backup::BackupArgs;
use self::client::{ApiClient, HttpCall};
use self::durations::seconds;
use self::program::{CommandError, Result, admin_url, exit_code, print_line, standard_input};
pub use self::program::{complain, fail, parse};
use self::session::{PAGE, ServerArgs, Session};

/// Publish and consume jobs, inspect and repair queues, through a server's ports.
#[derive(Args)]
#[command(after_help = "\
Examples:
  dormouse queue -n shop list                                the queues of a namespace
  dormouse queue -n shop peek mail --state dead              why jobs died
  dormouse queue -n shop publish mail 'to ann' --delay 5m    or the body on standard input
  dormouse queue -n shop consume mail --timeout 30s          get a job, as a worker does
  dormouse queue -n shop ack mail 01M80D5J4VCPC2AJTPM8000000 delete a finished job
  dormouse queue -n shop cancel mail --key order-7           delete a job that is no longer needed
  dormouse queue -n shop pause mail --for 10m                deliver nothing for ten minutes
  dormouse queue -n shop respawn mail --oldest 10            give dead jobs another try
  dormouse queue -n shop promote mail --key order-7          make a delayed job ready now
  dormouse queue -n shop purge mail --yes                    delete the ready jobs
  dormouse queue list --need any                             queues of all namespaces that need attention
  dormouse queue -n shop dead mail                           why jobs died, with counts
  dormouse queue -n shop respawn mail --all --reason 'mailbox full'
  dormouse queue -n shop destroy mail --state delayed --yes  delete the delayed jobs
  dormouse queue -n shop push set mail https://shop.example/jobs --concurrency 4
  dormouse queue -n shop schedules set nightly mail report --cron '30 2 * * *' --zone Europe/Berlin

The environment variables DORMOUSE_URL, DORMOUSE_TOKEN and DORMOUSE_NAMESPACE replace --url, --token and --namespace.
Other users of this machine can read --token in the process list, but not DORMOUSE_TOKEN.
`push`, `list --need`, `history`, `dead`, `respawn --all`, `destroy` and `bulk` use the admin port: set --admin or
DORMOUSE_ADMIN, and DORMOUSE_ADMIN_AUTH=user:password if it has accounts.

Exit codes: 0 done; 1 the server refused or could not be reached, or jobs were missing; 2 an argument is missing or
wrong.")]
pub struct QueueArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: QueueCommand,
}

#[derive(Subcommand)]
enum QueueCommand {
    /// List the queues of the namespace, with their numbers of jobs
    List {
        /// Maximum number of queues
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
        /// Only queues with this need, or without a value with any need; through the admin port, over all namespaces
        /// unless one is given
        #[arg(long, value_name = "NEED", num_args = 0..=1, default_missing_value = "any")]
        need: Option<String>,
    },
    /// Show the next jobs of a queue, without delivering them
    Peek {
        /// The queue to inspect
        queue: String,
        /// State of the jobs
        #[arg(long, value_enum, default_value_t = ListedState::Ready)]
        state: ListedState,
        /// Maximum number of jobs
        #[arg(long, value_name = "COUNT", default_value_t = 20)]
        limit: usize,
        /// Show bodies too
        #[arg(long)]
        data: bool,
        /// Show only this job, in any state, with its body
        #[arg(long, value_name = "ID", conflicts_with_all = ["state", "limit", "data"])]
        job: Option<String>,
    },
    /// Publish a job
    Publish {
        /// The queue to publish to
        queue: String,
        /// The body [default: standard input]
        body: Option<String>,
        /// Time until it is ready: seconds, or 5m, 2h, 1d
        #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        delay: Option<String>,
        /// When it is ready: RFC 3339, or Unix seconds
        #[arg(long, value_name = "TIME", conflicts_with = "delay")]
        at: Option<String>,
        /// Time until it expires: seconds, or 5m, 2h, 1d; 0 is forever
        #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        ttl: Option<String>,
        /// Maximum number of deliveries
        #[arg(long, value_name = "COUNT")]
        tries: Option<String>,
        /// A name of your own for it, unique in the queue
        #[arg(long)]
        key: Option<String>,
        /// If the key is taken: keep, replace or fail
        #[arg(long, value_name = "WHAT", requires = "key")]
        on_conflict: Option<String>,
    },
    /// Stop deliveries from a queue, until it is resumed
    Pause {
        /// The queue to pause
        queue: String,
        /// Time after which it resumes automatically: seconds, or 5m, 2h, 1d
        #[arg(long = "for", value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        time: Option<String>,
    },
    /// End a pause
    Resume {
        /// The queue to resume
        queue: String,
    },
    #[command(flatten)]
    Work(jobs::JobCommand),
    /// Make dead jobs ready again
    Respawn {
        /// The queue of the dead jobs
        queue: String,
        /// The ids of the jobs
        #[arg(required_unless_present_any = ["oldest", "all"], conflicts_with = "oldest", value_name = "ID")]
        jobs: Vec<String>,
        /// All jobs that are dead now, through the admin port; waits for the end
        #[arg(long, conflicts_with_all = ["jobs", "oldest"])]
        all: bool,
        /// With --all: only jobs that died for this reason; empty: jobs without a reason
        #[arg(long, requires = "all")]
        reason: Option<String>,
        /// This number of the oldest dead jobs instead, with one try each
        #[arg(long, value_name = "COUNT", conflicts_with_all = ["tries", "delay"])]
        oldest: Option<u64>,
        /// Maximum number of deliveries of each [default: 1]
        #[arg(long, value_name = "COUNT")]
        tries: Option<String>,
        /// Time until they are ready: seconds, or 5m, 2h, 1d
        #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        delay: Option<String>,
        /// Time until they expire: seconds, or 5m, 2h, 1d; 0 is forever
        #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        ttl: Option<String>,
        #[command(flatten)]
        of: operators::OfPool,
    },
    Promote(promote::PromoteArgs),
    /// Delete the ready jobs of a queue. Delayed, running and dead ones stay
    Purge {
        /// The queue to purge
        queue: String,
        /// Confirm
        #[arg(long)]
        yes: bool,
    },
    /// Delete a queue: its name and all of its jobs except running ones
    Forget {
        /// The queue to delete
        queue: String,
        /// Confirm
        #[arg(long)]
        yes: bool,
    },
    /// Send the jobs of a queue to a URL
    #[command(subcommand)]
    Push(push::PushCommand),
    /// Recurring jobs
    #[command(subcommand)]
    Schedules(schedules::SchedulesCommand),
    #[command(flatten)]
    Operate(operators::OperatorCommand),
}

impl QueueCommand {
    /// Whether the command applies to one namespace.
    fn needs_namespace(&self, has_admin: bool) -> bool {
        match self {
            QueueCommand::List { need, .. } => need.is_none() && !has_admin,
            QueueCommand::Operate(command) => command.needs_namespace(),
            _ => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListedState {
    Ready,
    Delayed,
    Running,
    Dead,
}

/// Runs the command, and returns the exit code.
pub fn run(args: QueueArgs) -> ExitCode {
    let needs_namespace = args.command.needs_namespace(args.server.has_admin());
    let session = Session::open(args.server, needs_namespace);
    exit_code("dormouse", session.and_then(|session| session.run(args.command)))
}

/// Prints a command's output, and returns the exit code: 1 if it could not be written.
pub fn print(text: &str) -> ExitCode {
    exit_code("dormouse", program::print(text))
}

/// Copies a pool.
pub fn backup(args: BackupArgs) -> ExitCode {
    exit_code("dormouse", backup::backup(args))
}

/// Asks the server at `DORMOUSE_ADMIN` whether it is ready.
pub fn health() -> ExitCode {
    let ask = || {
        let answer = ApiClient::new(&admin_url(None)?, None)?.exchange(HttpCall::get().to("ready"))?;
        let (status, text) = answer;
        if status.is_success() {
            Ok(())
        } else {
            Err(CommandError::NotDone(format!("not ready: {}", client::says(&text))))
        }
    };
    match ask() {
        Ok(()) => exit_code("dormouse", print_line("ready")),
        Err(CommandError::Usage(why) | CommandError::NotDone(why)) => {
            exit_code("dormouse", Err(CommandError::NotDone(why)))
        }
    }
}

impl Session {
    fn run(&self, command: QueueCommand) -> Result<()> {
        match command {
            QueueCommand::List { limit, need } if need.is_some() || self.namespace.is_empty() => {
                self.list_by_need(need, limit.unwrap_or(usize::MAX))
            }
            QueueCommand::List { limit, need: _ } => self.list(limit),
            QueueCommand::Peek { queue, job: Some(job), .. } => self.look_at(&queue, &job),
            QueueCommand::Peek { queue, state, limit, data, job: None } => {
                self.peek(&queue, state, limit, data)
            }
            QueueCommand::Publish { queue, body, delay, at, ttl, tries, key, on_conflict } => {
                let body = match body {
                    Some(body) => body.into_bytes(),
                    None => standard_input()?,
                };
                let query = [
                    ("delay", delay),
                    ("at", at),
                    ("ttl", ttl),
                    ("tries", tries),
                    ("key", key),
                    ("on_conflict", on_conflict),
                ];
                self.answer(self.at(&queue).to("jobs").post(body).with(query))
            }
            QueueCommand::Pause { queue, time } => {
                self.answer(self.at(&queue).to("pause").post("").with([("for", time)]))
            }
            QueueCommand::Resume { queue } => self.answer(self.at(&queue).to("resume").post("")),
            QueueCommand::Respawn { queue, oldest: Some(limit), ttl, .. } => {
                let query = [("limit", Some(limit.to_string())), ("ttl", ttl)];
                self.answer(self.at(&queue).to("deadletter").put().with(query))
            }
            QueueCommand::Respawn { queue, all: true, reason, tries, delay, ttl, of, .. } => {
                let number = |name, text: Option<String>| -> Result<_> {
                    let Some(text) = text else { return Ok(None) };
                    let wrong = |_| CommandError::Usage(format!("--{name} must be a number"));
                    Ok(Some((name, text.parse::<serde_json::Number>().map(Into::into).map_err(wrong)?)))
                };
                let given = [
                    number("tries", tries)?,
                    number("delay", delay)?,
                    number("ttl", ttl)?,
                    reason.map(|reason| ("reason", reason.into())),
                ];
                self.respawn_all(&queue, given.into_iter().flatten().collect(), of)
            }
            QueueCommand::Respawn { queue, jobs, oldest: None, tries, delay, ttl, .. } => {
                self.respawn(&queue, &jobs, &[("tries", tries), ("delay", delay), ("ttl", ttl)])
            }
            QueueCommand::Work(command) => self.work(command),
            QueueCommand::Promote(args) => self.promote(args),
            QueueCommand::Purge { queue, yes } => self.purge(&queue, yes),
            QueueCommand::Forget { queue, yes } => self.forget(&queue, yes),
            QueueCommand::Push(command) => self.push(command),
            QueueCommand::Schedules(command) => command.run(self),
            QueueCommand::Operate(command) => self.operate(command),
        }
    }

    fn list(&self, limit: Option<usize>) -> Result<()> {
        let call = HttpCall::get().to("api").to(&self.namespace);
        let queues = self.pages(&call, "queues", limit.unwrap_or(usize::MAX))?;
        self.show(&json!({"namespace": self.namespace, "queues": queues}), || show::queues(&queues))
    }

    fn peek(&self, queue: &str, state: ListedState, limit: usize, data: bool) -> Result<()> {
        let state = state.to_possible_value().map(|value| value.get_name().to_owned());
        let query = [("state", state), ("data", data.then(|| "1".to_owned()))];
        let jobs = self.pages(&self.at(queue).to("jobs").with(query), "jobs", limit)?;
        self.show(&json!({"jobs": jobs}), || show::jobs(&jobs, data))
    }

    fn look_at(&self, queue: &str, job: &str) -> Result<()> {
        let call = self.at(queue).to("job").to(job).with([("verbose", Some("1".to_owned()))]);
        let job = self.client.json(call)?;
        self.show(&job, || show::fields(&job))
    }

    fn push(&self, command: push::PushCommand) -> Result<()> {
        let client = self.admin_client()?;
        let call = command.call(&self.namespace)?;
        let answer = client.json_or_nothing(call)?.unwrap_or_else(|| json!({"msg": "deleted"}));
        self.show(&answer, || show::fields(&answer))?;
        match answer["ok"].as_bool() {
            Some(false) => {
                Err(CommandError::NotDone("the endpoint did not accept the test request".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn respawn(&self, queue: &str, jobs: &[String], query: &[(&'static str, Option<String>)]) -> Result<()> {
        let (mut respawned, mut missing) = (0, Vec::new());
        for jobs in jobs.chunks(PAGE) {
            let body = json!({"jobs": jobs}).to_string();
            let call = self.at(queue).to("deadletter").to("respawn").post(body);
            let answer = self.client.json(call.with(query.iter().cloned()))?;
            respawned += answer["respawned"].as_u64().unwrap_or(0);
            missing.extend(answer["missing"].as_array().cloned().unwrap_or_default());
        }
        let all = json!({"respawned": respawned, "missing": missing});
        self.show(&all, || show::fields(&all))?;
        match missing.len() {
            0 => Ok(()),
            some => Err(CommandError::NotDone(format!(
                "{some} of {} jobs are not dead or do not exist",
                jobs.len()
            ))),
        }
    }

    fn purge(&self, queue: &str, yes: bool) -> Result<()> {
        if !yes {
            let size = self.client.json(self.at(queue).to("size"))?["size"].as_u64().unwrap_or(0);
            return Err(CommandError::Usage(format!(
                "this deletes the ready jobs of {}/{queue}, {size} of them now; repeat it with --yes",
                self.namespace
            )));
        }
        self.client.send(self.at(queue).delete())?;
        let done = json!({"msg": "purged"});
        self.show(&done, || show::fields(&done))
    }

    fn forget(&self, queue: &str, yes: bool) -> Result<()> {
        if !yes {
            return Err(CommandError::Usage(format!(
                "this deletes {}/{queue} and all of its jobs except running ones; repeat it with --yes",
                self.namespace
            )));
        }
        self.client.send(self.at(queue).delete().with([("forget", Some("1".to_owned()))]))?;
        let done = json!({"msg": "forgotten"});
        self.show(&done, || show::fields(&done))
    }

    /// Creates a client of the admin port.
    fn admin_client(&self) -> Result<ApiClient> {
        ApiClient::new(&admin_url(self.admin.clone())?, push::login()?)
    }

    /// Returns a call below a queue.
    fn at(&self, queue: &str) -> HttpCall {
        HttpCall::get().to("api").to(&self.namespace).to(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against an argument without a description.
    #[test]
    fn every_argument_is_described() {
        fn walk(command: &clap::Command, path: &str, wrong: &mut Vec<String>, seen: &mut usize) {
            for argument in command.get_arguments() {
                *seen += 1;
                if argument.get_help().is_none() && argument.get_long_help().is_none() {
                    wrong.push(format!("{path} {}", argument.get_id()));
                }
            }
            for inner in command.get_subcommands() {
                walk(inner, &format!("{path} {}", inner.get_name()), wrong, seen);
            }
        }
        let (mut wrong, mut seen) = (Vec::new(), 0);
        let all = [
            QueueArgs::augment_args(clap::Command::new("queue")),
            BackupArgs::augment_args(clap::Command::new("backup")),
            token::TokenCommands::augment_args(clap::Command::new("token")),
            tokens::command(),
        ];
        for command in &all {
            walk(command, command.get_name(), &mut wrong, &mut seen);
        }
        assert!(wrong.is_empty(), "no description: {wrong:?}");
        assert!(seen > 60, "only {seen} arguments: this test looks in the wrong place");
    }

    #[test]
    fn a_wrong_duration_names_the_forms() {
        let parse = |delay: &str| {
            let command = QueueArgs::augment_args(clap::Command::new("queue"));
            command.try_get_matches_from(["queue", "publish", "q", "--delay", delay]).map(drop)
        };
        assert!(parse("5m").is_ok());
        for wrong in ["5 minutes", "-1", "1w", "", "99999999999", "50000d"] {
            let said = parse(wrong).expect_err("no duration").to_string();
            assert!(
                said.contains("use seconds, or 5m, 2h, 1d") && said.contains("--delay"),
                "{wrong}: {said}"
            );
        }
    }
}
