//! `dormouse token`: tokens of namespaces, through the admin port. token-cli does the same with lmstfy's flags.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::client::{ApiClient, HttpCall};
use super::program::{CommandError, Result, admin_url, exit_code, given, print_line};
use super::push::login;
use super::session::Output;
use super::show;
use crate::readable::visible_json;

/// Create, list and delete the tokens of namespaces (admin port)
///
/// The admin port is at DORMOUSE_ADMIN [default: http://127.0.0.1:7778]; if it has accounts, set
/// DORMOUSE_ADMIN_AUTH=user:password.
#[derive(Args)]
#[command(after_help = "\
Examples:
  dormouse token new -n shop                     print a new token for the namespace shop
  TOKEN=$(dormouse token new -n shop)            keep it in a variable
  dormouse token list -n shop
  dormouse token delete -n shop 01GA47SA3EXAMPLETOKEN000")]
pub struct TokenCommands {
    #[command(subcommand)]
    command: TokenCommand,
    /// The namespace of the token; or DORMOUSE_NAMESPACE
    #[arg(short = 'n', long, global = true, value_name = "NAME", help_heading = "Shared options")]
    namespace: Option<String>,
    /// The namespace's pool [default: default]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Shared options")]
    pool: Option<String>,
    /// The server's admin port [default: http://127.0.0.1:7778]
    #[arg(long, global = true, value_name = "URL", help_heading = "Shared options")]
    admin: Option<String>,
    /// A table to read, or the server's JSON
    #[arg(short = 'o', long, global = true, value_enum, default_value_t = Output::Table, help_heading = "Shared options")]
    output: Output,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Create a token and print it
    New {
        /// Purpose of the token
        #[arg(short = 'D', long, value_name = "TEXT", default_value = "dormouse token new")]
        description: String,
    },
    /// List the tokens of a namespace
    List,
    /// Delete a token. Requests with it are refused from now on
    Delete {
        /// The token
        token: String,
    },
}

/// Runs the command, and returns the exit code.
pub fn run(args: TokenCommands) -> ExitCode {
    exit_code("dormouse", args.run())
}

impl TokenCommands {
    /// Prints a reply as JSON, or as `text`.
    fn print(&self, answer: &Value, text: &str) -> Result<()> {
        match self.output {
            Output::Table => print_line(text),
            Output::Json => print_line(&visible_json(&answer.to_string())),
        }
    }

    fn run(&self) -> Result<()> {
        let missing = "the namespace is missing: give --namespace or DORMOUSE_NAMESPACE";
        let namespace = given(self.namespace.clone(), "DORMOUSE_NAMESPACE")?
            .ok_or_else(|| CommandError::Usage(missing.to_owned()))?;
        let client = ApiClient::new(&admin_url(self.admin.clone())?, login()?)?;
        let at = HttpCall::get().to("token").to(&namespace);
        match &self.command {
            TokenCommand::New { description } => {
                let query = [("description", Some(description.clone())), ("pool", self.pool.clone())];
                let answer = client.json(at.with(query).post(""))?;
                let token = answer["token"].as_str().unwrap_or_default();
                self.print(&answer, token)
            }
            TokenCommand::List => {
                let answer = client.json(at.with([("pool", self.pool.clone())]))?;
                self.print(&answer, &show::tokens(&answer))
            }
            TokenCommand::Delete { token } => {
                // In a path, the pool precedes the token, unless the token names its pool already.
                let token = match &self.pool {
                    Some(pool) if !token.contains(':') => format!("{pool}:{token}"),
                    _ => token.clone(),
                };
                client.send(at.to(&token).delete())?;
                print_line("deleted")
            }
        }
    }
}
