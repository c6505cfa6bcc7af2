//! `dormouse queue schedules`: recurring jobs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::client::HttpCall;
use super::durations::seconds;
use super::program::{CommandError, Result, given_file, standard_input};
use super::session::{Output, Session};
use super::show;

#[derive(Subcommand)]
pub enum SchedulesCommand {
    /// List the schedules of the namespace, by name. With `-o json`, as a set for `sync`
    List {
        /// Only names with this prefix
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Only schedules that publish to this queue
        #[arg(long)]
        queue: Option<String>,
        /// Only schedules in this state: on, paused, ended or broken
        #[arg(long)]
        state: Option<String>,
        /// Maximum number of schedules
        #[arg(long, value_name = "COUNT")]
        limit: Option<usize>,
    },
    /// Show the setting, the next occurrences, and the results of the last ones
    Show {
        /// The schedule
        name: String,
    },
    /// Set a schedule; omitted options get their defaults
    Set(Box<ScheduleSettingArgs>),
    /// Delete a schedule. Its jobs stay
    Delete {
        /// The schedule
        name: String,
    },
    /// Publish nothing, until it is resumed
    Pause {
        /// The schedule
        name: String,
        /// Time after which it resumes automatically: seconds, or 5m, 2h, 1d
        #[arg(long = "for", value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
        time: Option<String>,
    },
    /// End a pause. Occurrences that were due during the pause are not caught up
    Resume {
        /// The schedule
        name: String,
    },
    /// Publish one job now, in addition to the occurrences
    Run {
        /// The schedule
        name: String,
        /// The past instant of an occurrence to repeat: RFC 3339, or Unix seconds
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
    },
    /// Show when an expression or an interval would be due; stores nothing
    Preview(Preview),
    /// Replace the server's schedules by those of a file: {"schedules": [{"name": "..", ..}]}
    Sync {
        /// The file; - is standard input
        file: PathBuf,
        /// Delete schedules that are not in the file
        #[arg(long)]
        prune: bool,
        /// The file has only names with this prefix, and only such schedules are deleted
        #[arg(long, value_name = "TEXT")]
        prefix: Option<String>,
        /// Change nothing; exit with 1 if there are differences
        #[arg(long)]
        dry_run: bool,
    },
}

/// When a schedule is due.
#[derive(Args)]
#[group(multiple = false)]
struct Rule {
    /// Minute, hour, day, month and weekday, as in '30 2 * * *'; or six fields, with the second first
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// Time between two occurrences: seconds, or 5m, 2h, 1d
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds)]
    every: Option<String>,
}

#[derive(Args)]
struct Bounds {
    /// The time zone of --cron, as in Europe/Berlin [default: UTC]
    #[arg(long)]
    zone: Option<String>,
    /// No occurrence before this: RFC 3339, or Unix seconds
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// No occurrence after this
    #[arg(long, value_name = "TIME")]
    end: Option<String>,
}

#[derive(Args)]
pub struct Preview {
    #[command(flatten)]
    rule: Rule,
    #[command(flatten)]
    bounds: Bounds,
    /// Only occurrences after this [default: now]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Number of occurrences [default: 5]
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<String>,
    // Replaces the global option, because -n has another meaning here.
    /// The namespace whose token is used
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
}

#[derive(Args)]
pub struct ScheduleSettingArgs {
    /// The schedule
    name: String,
    /// Queue of its jobs; without it the whole setting is read from standard input, as JSON
    queue: Option<String>,
    /// The body of its jobs
    #[arg(requires = "queue")]
    body: Option<String>,
    #[command(flatten)]
    rule: Rule,
    #[command(flatten)]
    bounds: Bounds,
    /// An attribute of its jobs, as name=value; may be repeated
    #[arg(long = "attribute", value_name = "NAME=VALUE", requires = "queue")]
    attributes: Vec<String>,
    /// Maximum number of deliveries of each job
    #[arg(long, value_name = "COUNT", requires = "queue")]
    tries: Option<String>,
    /// Time until each job expires: seconds, or 5m, 2h, 1d; 0 is forever
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds, requires = "queue")]
    ttl: Option<String>,
    /// If the previous job still exists: allow, skip or replace
    #[arg(long, value_name = "WHAT", requires = "queue")]
    overlap: Option<String>,
    /// The key of its jobs, with skip and replace
    #[arg(long, requires = "queue")]
    key: Option<String>,
    /// Maximum lateness of an occurrence: seconds, or 5m, 2h, 1d
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds, requires = "queue")]
    deadline: Option<String>,
    /// Which missed occurrences are caught up: none, last or all
    #[arg(long, value_name = "WHAT", requires = "queue")]
    catch_up: Option<String>,
    /// Time over which occurrences are spread: seconds, or 5m, 2h
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = seconds, requires = "queue")]
    jitter: Option<String>,
    /// Pause it, or end its pause: true or false [default: unchanged]
    #[arg(long, value_name = "BOOL", requires = "queue")]
    paused: Option<bool>,
    /// Only if this is the current revision
    #[arg(long, value_name = "NUMBER", requires = "queue")]
    revision: Option<u64>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl ScheduleSettingArgs {
    /// Returns the JSON of the setting.
    fn json(self) -> Result<Vec<u8>> {
        let Some(queue) = self.queue else {
            // Other commands have these too, so they cannot require the queue by themselves.
            let Rule { cron, every } = &self.rule;
            let Bounds { zone, start, end } = &self.bounds;
            return match [cron, every, zone, start, end].into_iter().any(Option::is_some) {
                true => Err(CommandError::Usage("the queue is missing: set NAME QUEUE [BODY]".to_owned())),
                false => standard_input(),
            };
        };
        let text = |text: Option<String>| text.map(Value::from);
        // Invalid numbers are passed on: the server rejects them, and says what is valid.
        let number = |text: Option<String>| {
            let number = |text: &str| serde_json::from_str(text).ok().filter(Value::is_number);
            text.map(|text| number(&text).unwrap_or(Value::String(text)))
        };
        let attributes = attributes(&self.attributes)?;
        let given = [
            ("queue", Some(json!(queue))),
            ("text", text(self.body)),
            ("cron", text(self.rule.cron)),
            ("every", number(self.rule.every)),
            ("zone", text(self.bounds.zone)),
            ("start", text(self.bounds.start)),
            ("end", text(self.bounds.end)),
            ("attributes", (!attributes.is_empty()).then(|| attributes.into())),
            ("tries", number(self.tries)),
            ("ttl", number(self.ttl)),
            ("overlap", text(self.overlap)),
            ("key", text(self.key)),
            ("deadline", number(self.deadline)),
            ("catch_up", text(self.catch_up)),
            ("jitter", number(self.jitter)),
            ("paused", self.paused.map(Value::from)),
            ("revision", self.revision.map(Value::from)),
        ];
        let setting = given.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?)));
        Ok(Value::Object(setting.collect()).to_string().into_bytes())
    }
}

fn attributes(given: &[String]) -> Result<Map<String, Value>> {
    let pair = |attribute: &String| {
        let pair = attribute.split_once('=').map(|(name, value)| (name.to_owned(), json!(value)));
        pair.ok_or_else(|| {
            CommandError::Usage(format!("invalid attribute {attribute:?}: write it as name=value"))
        })
    };
    given.iter().map(pair).collect()
}

fn flag(given: bool) -> Option<String> {
    given.then(|| "1".to_owned())
}

impl SchedulesCommand {
    pub fn run(self, session: &Session) -> Result<()> {
        use SchedulesCommand as Command;
        let all = || HttpCall::get().to("api").to(&session.namespace).to("_schedules");
        match self {
            Command::List { prefix, queue, state, limit } => {
                // With bodies, the JSON is a set for `sync`.
                let data = flag(session.output == Output::Json);
                let call =
                    all().with([("prefix", prefix), ("queue", queue), ("state", state), ("data", data)]);
                let schedules = session.pages(&call, "schedules", limit.unwrap_or(usize::MAX))?;
                session.show(&json!({ "schedules": schedules }), || show::schedules(&schedules))
            }
            Command::Show { name } => {
                let schedule = session.client.json(all().to(&name))?;
                session.show(&schedule, || show::schedule(&schedule))
            }
            Command::Set(setting) => {
                let call = all().to(&setting.name).with([("dry_run", flag(setting.dry_run))]);
                let answer = session.client.json(call.put_body(setting.json()?))?;
                session.show(&answer, || show::schedule(&answer))
            }
            Command::Delete { name } => {
                session.client.send(all().to(&name).delete())?;
                let done = json!({"msg": "deleted"});
                session.show(&done, || show::fields(&done))
            }
            Command::Pause { name, time } => {
                session.answer(all().to(&name).to("pause").post("").with([("for", time)]))
            }
            Command::Resume { name } => session.answer(all().to(&name).to("resume").post("")),
            Command::Run { name, at } => {
                session.answer(all().to(&name).to("run").post("").with([("at", at)]))
            }
            Command::Preview(preview) => preview.run(session),
            Command::Sync { file, prune, prefix, dry_run } => {
                let query = [("prune", flag(prune)), ("prefix", prefix), ("dry_run", flag(dry_run))];
                sync(session, all().with(query), &file)
            }
        }
    }
}

impl Preview {
    fn run(self, session: &Session) -> Result<()> {
        let namespace = self.namespace.as_deref().unwrap_or(&session.namespace);
        let Bounds { zone, start, end } = self.bounds;
        let query = [
            ("cron", self.rule.cron),
            ("every", self.rule.every),
            ("zone", zone),
            ("start", start),
            ("end", end),
            ("from", self.from),
            ("n", self.count),
        ];
        let call = HttpCall::get().to("api").to(namespace).to("_schedules").to("_preview");
        let answer = session.client.json(call.with(query))?;
        session.show(&answer, || show::instants(&answer["next"]))
    }
}

/// Sends the whole set. A dry run that finds differences exits with 1.
fn sync(session: &Session, call: HttpCall, file: &Path) -> Result<()> {
    let set = if file == Path::new("-") { standard_input()? } else { given_file(file)? };
    let answer = session.client.json(call.put_body(set))?;
    session.show(&answer, || show::differences(&answer))?;
    let differences = || ["created", "changed", "removed"].iter().filter_map(|what| answer[what].as_array());
    match differences().map(Vec::len).sum() {
        0 => Ok(()),
        _ if answer["dry_run"] != true => Ok(()),
        some => Err(CommandError::NotDone(format!("{some} schedules of the server differ from the file"))),
    }
}
