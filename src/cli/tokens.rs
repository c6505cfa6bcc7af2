//! token-cli: creates, deletes and lists tokens through a server's admin port. It has lmstfy's flags, and `-u` for
//! admin ports with accounts.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use super::client::{ApiClient, Header, HttpCall, basic_auth};
use super::program::{CommandError, Result, exit_code, given, parse, print_line};
use crate::readable::visible_json;

/// Provides `user:password` if `-u` is not given.
const AUTH_ENV: &str = "DORMOUSE_ADMIN_AUTH";

/// Returns the command line of token-cli, for its man page.
pub fn command() -> clap::Command {
    <TokenArgs as clap::CommandFactory>::command()
}

/// Creates, deletes and lists the tokens of a namespace, through the admin port of a Dormouse (or lmstfy) server.
#[derive(Parser, Debug)]
#[command(
    name = "token-cli",
    version,
    override_usage = "token-cli HOST:PORT <-c|-d|-l|-P> [options]",
    after_help = "\
Examples:
  token-cli localhost:7778 -c -n orders -D 'the order service'      create a token
  token-cli localhost:7778 -c -n orders -p fast -D 'a pool of its own'
  token-cli localhost:7778 -l -n orders                             list a namespace's tokens
  token-cli localhost:7778 -d -n orders -t 01GA47SA3EXAMPLETOKEN000  delete one
  token-cli localhost:7778 -P                                       list the pools

When the server's configuration has [Accounts], give one of them with -u, or in the environment variable
DORMOUSE_ADMIN_AUTH as user:password, where other users of this machine cannot read it.

Exit codes: 0 done; 1 the server refused or could not be reached; 2 an argument is missing or wrong."
)]
struct TokenArgs {
    /// The server's admin port, e.g. localhost:7778.
    #[arg(value_name = "HOST:PORT")]
    host: Option<String>,
    /// Create a token; needs -n and -D.
    #[arg(short = 'c', long, group = "action")]
    create: bool,
    /// Delete a token; needs -n and -t.
    #[arg(short = 'd', long, group = "action")]
    delete: bool,
    /// List a namespace's tokens; needs -n.
    #[arg(short = 'l', long, group = "action")]
    list: bool,
    /// List the pools.
    #[arg(short = 'P', long, group = "action")]
    pools: bool,
    /// The namespace of the token.
    #[arg(short = 'n', long, value_name = "NAME")]
    namespace: Option<String>,
    /// The pool of the namespace; the default pool when not given.
    #[arg(short = 'p', long, value_name = "NAME")]
    pool: Option<String>,
    /// Purpose of the token.
    #[arg(short = 'D', long, value_name = "TEXT")]
    description: Option<String>,
    /// The token to delete; or the one to create instead of a random one, with at least 20 characters.
    #[arg(short = 't', long)]
    token: Option<String>,
    /// An account of the server's `[Accounts]`. Other users of this machine can read it in the process list:
    /// prefer DORMOUSE_ADMIN_AUTH.
    #[arg(short = 'u', long, value_name = "USER:PASSWORD")]
    user: Option<String>,
}

/// Runs the command line, and returns the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match parse::<TokenArgs>("token-cli", args) {
        Ok(args) => exit_code("token-cli", ask(&args)),
        Err(code) => code,
    }
}

fn ask(args: &TokenArgs) -> Result<()> {
    let host = address(args)?;
    let client = ApiClient::new(&format!("http://{host}"), authorization(args)?)?;
    let (status, answer) = client.exchange(plan(args)?)?;
    let deleted = status.is_success() && args.delete && answer.is_empty();
    print_line(&if deleted { "ok".into() } else { visible_json(&answer) })?;
    if status.is_success() { Ok(()) } else { Err(CommandError::NotDone(format!("{host} answered {status}"))) }
}

/// Returns the argument, unless it is missing or empty.
fn need<'a>(value: &'a Option<String>, what: &str) -> Result<&'a str> {
    let missing = || CommandError::Usage(format!("{what} is missing; see --help"));
    value.as_deref().filter(|value| !value.is_empty()).ok_or_else(missing)
}

fn address(args: &TokenArgs) -> Result<&str> {
    let text = need(&args.host, "the server's HOST:PORT")?;
    let host = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let port =
        host.rsplit_once(':').filter(|(name, _)| !name.is_empty()).map(|(_, port)| port.parse::<u16>());
    let odd = host.contains(|c: char| c.is_whitespace() || c.is_control() || "/?#@\\".contains(c));
    match port {
        Some(Ok(_)) if !odd => Ok(host),
        _ => {
            Err(CommandError::Usage("the server must be given as HOST:PORT, like localhost:7778".to_owned()))
        }
    }
}

/// Returns the header for basic authentication, from `-u` or else the environment.
fn authorization(args: &TokenArgs) -> Result<Option<Header>> {
    let from = if args.user.is_some() { "-u" } else { AUTH_ENV };
    match given(args.user.clone(), AUTH_ENV)? {
        Some(account) if account.contains(':') => Ok(Some(basic_auth(&account))),
        None if args.user.is_none() => Ok(None),
        _ => Err(CommandError::Usage(format!("{from} must have the form user:password"))),
    }
}

fn plan(args: &TokenArgs) -> Result<HttpCall> {
    let at = || Ok(HttpCall::get().to("token").to(need(&args.namespace, "the namespace (-n)")?));
    let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    let pool = given(&args.pool);
    if args.create {
        let description = need(&args.description, "the description (-D)")?.to_owned();
        let query = [("description", Some(description)), ("pool", pool), ("token", given(&args.token))];
        Ok(at()?.with(query).post(""))
    } else if args.delete {
        let token = need(&args.token, "the token (-t)")?;
        // In a path, the pool precedes the token, unless the token names its pool already.
        match pool {
            Some(pool) if !token.contains(':') => Ok(at()?.to(&format!("{pool}:{token}")).delete()),
            _ => Ok(at()?.to(token).delete()),
        }
    } else if args.list {
        Ok(at()?.with([("pool", pool)]))
    } else if args.pools {
        Ok(HttpCall::get().to("pools"))
    } else {
        let what = "say what to do: -c creates a token, -d deletes one, -l lists them, -P lists pools";
        Err(CommandError::Usage(what.to_owned()))
    }
}
