//! A server as used by the commands of `dormouse queue`: client, namespace, and output format. Knows no command.

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::client::{ApiClient, HttpCall};
use super::program::{CommandError, Result, given, print_line};
use super::show;
use crate::readable::visible_json;

/// Maximum jobs or queues per page of the server, and jobs per request.
pub const PAGE: usize = 100;

/// Server, namespace and output format.
#[derive(Args)]
pub struct ServerArgs {
    /// The server's public port; or DORMOUSE_URL [default: http://127.0.0.1:7777]
    #[arg(long, global = true, value_name = "URL", help_heading = "Shared options")]
    url: Option<String>,
    /// The namespace's token; prefer DORMOUSE_TOKEN
    #[arg(long, global = true, help_heading = "Shared options")]
    token: Option<String>,
    /// The server's admin port; or DORMOUSE_ADMIN [default: http://127.0.0.1:7778]
    #[arg(long, global = true, value_name = "URL", help_heading = "Shared options")]
    admin: Option<String>,
    /// The namespace of the queues; or DORMOUSE_NAMESPACE
    #[arg(short = 'n', long, global = true, value_name = "NAME", help_heading = "Shared options")]
    namespace: Option<String>,
    /// A table to read, or the server's JSON
    #[arg(short = 'o', long, global = true, value_enum, default_value_t = Output::Table, help_heading = "Shared options")]
    output: Output,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

/// A server, a namespace, and the output format.
pub struct Session {
    pub client: ApiClient,
    /// URL of the admin port, if given on the command line.
    pub admin: Option<String>,
    /// Empty for all namespaces, for commands that allow it.
    pub namespace: String,
    pub output: Output,
}

impl ServerArgs {
    /// Whether the command line names an admin port.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some()
    }
}

impl Session {
    /// Returns the namespace, if one was given.
    pub fn namespace_if_given(&self) -> Option<String> {
        Some(self.namespace.clone()).filter(|namespace| !namespace.is_empty())
    }

    /// Opens a session, without a namespace for commands that apply to all.
    pub fn open(args: ServerArgs, needs_namespace: bool) -> Result<Session> {
        let url = given(args.url, "DORMOUSE_URL")?.unwrap_or_else(|| "http://127.0.0.1:7777".to_owned());
        let token = given(args.token, "DORMOUSE_TOKEN")?;
        let namespace = given(args.namespace, "DORMOUSE_NAMESPACE")?;
        let none = || {
            let text = "the namespace is missing: give --namespace or DORMOUSE_NAMESPACE";
            if needs_namespace { Err(CommandError::Usage(text.to_owned())) } else { Ok(String::new()) }
        };
        let namespace = namespace.map_or_else(none, Ok)?;
        let token = token.map(|token| ("X-Token", token));
        Ok(Session {
            client: ApiClient::new(&url, token)?,
            admin: args.admin,
            namespace,
            output: args.output,
        })
    }

    /// Sends a call, and shows the reply.
    pub fn answer(&self, call: HttpCall) -> Result<()> {
        let answer = self.client.json(call)?;
        self.show(&answer, || show::fields(&answer))
    }

    pub fn show(&self, json: &Value, table: impl FnOnce() -> String) -> Result<()> {
        match self.output {
            Output::Table => print_line(&table()),
            Output::Json => print_line(&visible_json(&json.to_string())),
        }
    }

    /// Returns up to `limit` elements of a paged list.
    pub fn pages(&self, call: &HttpCall, field: &str, limit: usize) -> Result<Vec<Value>> {
        self.pages_of(&self.client, call, field, limit)
    }

    /// Like [`pages`](Session::pages), from another port.
    pub fn pages_of(
        &self,
        client: &ApiClient,
        call: &HttpCall,
        field: &str,
        limit: usize,
    ) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut cursor = None;
        while all.len() < limit {
            let most = (limit - all.len()).min(PAGE).to_string();
            let page = [("limit", Some(most)), ("cursor", cursor)];
            let mut page = client.json(call.clone().with(page))?;
            all.extend(page[field].as_array_mut().map(std::mem::take).unwrap_or_default());
            cursor = page["cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        Ok(all)
    }
}
