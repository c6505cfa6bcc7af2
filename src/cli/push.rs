//! `dormouse queue push`: push settings, through the admin port.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::client::{Header, HttpCall, basic_auth};
use super::durations::{fractional_seconds, whole_seconds};
use super::program::{CommandError, Result, given, standard_input};

#[derive(Subcommand)]
pub enum PushCommand {
    /// Set how a queue is pushed; omitted options get their defaults. Shows the secret the first time
    Set(Box<PushSettingArgs>),
    /// Show the setting, its state, counts, and the last attempts
    Show(Target),
    /// Delete the setting and the secret. Jobs stay
    Delete(Target),
    /// Send one signed test request now, and show the response
    Test(Target),
    /// Send nothing until it is resumed
    Pause(Target),
    /// End a pause, or continue after the endpoint responded with 410
    Resume(Target),
    /// Create a new secret. Requests are also signed with the previous one for 24 hours
    Secret(Target),
}

#[derive(Args)]
pub struct Target {
    /// The pushed queue
    queue: String,
    /// The queue's pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
}

#[derive(Args)]
pub struct PushSettingArgs {
    #[command(flatten)]
    target: Target,
    /// URL of the endpoint; without it the whole setting is read from standard input, as JSON
    #[arg(value_name = "TO")]
    to: Option<String>,
    /// POST or PUT
    #[arg(long, requires = "to")]
    method: Option<String>,
    /// A header, as 'Name: value'; may be repeated. Other users of this machine can read it in the process list
    #[arg(long = "header", value_name = "HEADER", requires = "to")]
    headers: Vec<String>,
    /// Timeout of a request: seconds, or 5m
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = whole_seconds, requires = "to")]
    timeout: Option<u64>,
    /// Maximum requests in flight, over all servers
    #[arg(long, value_name = "COUNT", requires = "to")]
    concurrency: Option<u64>,
    /// Maximum requests begun per --per, over all servers
    #[arg(long, value_name = "COUNT", requires = "to")]
    rate: Option<u64>,
    /// Period of --rate: seconds, or 5m, 2h, 1d
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = whole_seconds, requires = "to")]
    per: Option<u64>,
    /// Time before the second attempt, the third, and so on: 5s,30s,5m
    #[arg(long, value_name = "DURATIONS", allow_negative_numbers = true, value_parser = fractional_seconds, value_delimiter = ',', requires = "to")]
    retry: Option<Vec<f64>>,
    /// A 2xx counts only if its JSON has this value, as in '/code=0'
    #[arg(long, value_name = "POINTER=JSON", requires = "to")]
    ok_when: Option<String>,
    /// raw or cloudevents
    #[arg(long, requires = "to")]
    format: Option<String>,
    /// A queue of the namespace that gets a message about each job that dies
    #[arg(long, value_name = "QUEUE", requires = "to")]
    on_dead: Option<String>,
}

impl PushSettingArgs {
    /// Returns the JSON of the setting.
    fn json(self) -> Result<Vec<u8>> {
        let Some(to) = self.to else { return standard_input() };
        let mut setting = Map::from_iter([("url".to_owned(), json!(to))]);
        let given = [
            ("method", self.method.map(Value::from)),
            ("timeout", self.timeout.map(Value::from)),
            ("concurrency", self.concurrency.map(Value::from)),
            ("rate", self.rate.map(Value::from)),
            ("per", self.per.map(Value::from)),
            ("retry", self.retry.map(Value::from)),
            ("format", self.format.map(Value::from)),
            ("on_dead", self.on_dead.map(Value::from)),
        ];
        setting.extend(given.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))));
        let usage = |text: &str| CommandError::Usage(text.to_owned());
        let mut headers = Map::new();
        for header in &self.headers {
            let (name, value) =
                header.split_once(':').ok_or_else(|| usage("invalid header: write it as 'Name: value'"))?;
            headers.insert(name.trim().to_owned(), json!(value.trim()));
        }
        if !headers.is_empty() {
            setting.insert("headers".to_owned(), headers.into());
        }
        if let Some(text) = self.ok_when {
            let wrong = || usage("invalid --ok-when: write it as '/code=0', with JSON after the =");
            let (pointer, equals) = text.split_once('=').ok_or_else(wrong)?;
            let equals: Value = serde_json::from_str(equals).map_err(|_| wrong())?;
            setting.insert("ok_when".to_owned(), json!({"pointer": pointer, "equals": equals}));
        }
        Ok(Value::Object(setting).to_string().into_bytes())
    }
}

impl PushCommand {
    /// Returns the call of the command.
    pub fn call(self, namespace: &str) -> Result<HttpCall> {
        let at = |target: &Target| {
            let call = HttpCall::get().to("push").to(namespace).to(&target.queue);
            call.with([("pool", target.pool.clone())])
        };
        Ok(match self {
            PushCommand::Set(setting) => {
                let call = at(&setting.target);
                call.put_body(setting.json()?)
            }
            PushCommand::Show(target) => at(&target),
            PushCommand::Delete(target) => at(&target).delete(),
            PushCommand::Test(target) => at(&target).to("test").post(""),
            PushCommand::Pause(target) => at(&target).to("pause").post(""),
            PushCommand::Resume(target) => at(&target).to("resume").post(""),
            PushCommand::Secret(target) => at(&target).to("secret").post(""),
        })
    }
}

/// Returns the header for basic authentication, from the environment, where other users cannot read it.
pub fn login() -> Result<Option<Header>> {
    let login = given(None, "DORMOUSE_ADMIN_AUTH")?;
    Ok(login.as_deref().map(basic_auth))
}
