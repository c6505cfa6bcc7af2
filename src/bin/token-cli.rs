//! `token-cli`: creates, deletes and lists tokens through a server's admin port. Same flags as lmstfy's tool,
//! and `-u` for admin ports that ask for a password. Speaks HTTP only: it knows no store and no config.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use percent_encoding::{AsciiSet, utf8_percent_encode};

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest answer that is read, in bytes: a list of hundreds of thousands of tokens.
const MAX_ANSWER: u64 = 64 << 20;
/// Holds `user:password` when `-u` is not given.
const AUTH_ENV: &str = "DORMOUSE_ADMIN_AUTH";

/// Creates, deletes and lists the tokens that open a namespace, through the admin port of a Dormouse (or
/// lmstfy) server.
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
struct Args {
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
    /// The namespace that the token opens.
    #[arg(short = 'n', long, value_name = "NAME")]
    namespace: Option<String>,
    /// The pool of the namespace; the default pool when not given.
    #[arg(short = 'p', long, value_name = "NAME")]
    pool: Option<String>,
    /// What the token is for.
    #[arg(short = 'D', long, value_name = "TEXT")]
    description: Option<String>,
    /// The token to delete; or one to create instead of a random one, of at least 20 characters.
    #[arg(short = 't', long)]
    token: Option<String>,
    /// An account of the server's `[Accounts]`. Other users of this machine can read it in the process list:
    /// prefer DORMOUSE_ADMIN_AUTH.
    #[arg(short = 'u', long, value_name = "USER:PASSWORD")]
    user: Option<String>,
}

/// One call to the admin port.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    method: Method,
    /// Path and query, percent-encoded.
    path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Get,
    Post,
    Delete,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let planned = address(&args).and_then(|host| Ok((host, authorization(&args)?, plan(&args)?)));
    let (host, authorization, call) = match planned {
        Ok(planned) => planned,
        Err(what) => {
            eprintln!("token-cli: {what}");
            return ExitCode::from(2);
        }
    };
    match send(&host, authorization, &call) {
        Ok((status, answer)) if status.is_success() => {
            let done = call.method == Method::Delete && answer.is_empty();
            print_line(if done { "ok" } else { &answer });
            ExitCode::SUCCESS
        }
        Ok((status, answer)) => {
            print_line(&answer);
            eprintln!("token-cli: {host} answered {status}");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("token-cli: cannot reach {host}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a text with one line end; prints nothing if the text is empty. It is no error if nobody reads it.
fn print_line(text: &str) {
    use std::io::Write;
    let text = text.trim_end();
    if !text.is_empty() {
        let _gone = writeln!(std::io::stdout(), "{text}");
    }
}

/// The argument, unless it is missing or empty.
fn need<'a>(value: &'a Option<String>, what: &str) -> Result<&'a str, String> {
    value.as_deref().filter(|v| !v.is_empty()).ok_or_else(|| format!("{what} is missing; see --help"))
}

fn address(args: &Args) -> Result<String, String> {
    let text = need(&args.host, "the server's HOST:PORT")?;
    let host = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let port =
        host.rsplit_once(':').filter(|(name, _)| !name.is_empty()).map(|(_, port)| port.parse::<u16>());
    let odd = host.contains(|c: char| c.is_whitespace() || c.is_control() || "/?#@\\".contains(c));
    match port {
        Some(Ok(_)) if !odd => Ok(host.to_string()),
        _ => Err("the server must be given as HOST:PORT, like localhost:7778".to_string()),
    }
}

/// The header for basic auth, from `-u` or else the environment.
fn authorization(args: &Args) -> Result<Option<String>, String> {
    let (from, account) = match &args.user {
        Some(account) => ("-u", account.clone()),
        None => match std::env::var(AUTH_ENV) {
            Ok(account) if !account.is_empty() => (AUTH_ENV, account),
            Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => return Err(format!("{AUTH_ENV} is not UTF-8")),
        },
    };
    if !account.contains(':') {
        return Err(format!("{from} must have the form user:password"));
    }
    Ok(Some(format!("Basic {}", STANDARD.encode(account))))
}

fn plan(args: &Args) -> Result<Call, String> {
    let namespace = || need(&args.namespace, "the namespace (-n)").map(encode);
    let pool = args.pool.as_deref().filter(|p| !p.is_empty());
    if args.create {
        let mut query = vec![("description", need(&args.description, "the description (-D)")?)];
        query.extend(pool.map(|pool| ("pool", pool)));
        query.extend(args.token.as_deref().filter(|t| !t.is_empty()).map(|token| ("token", token)));
        Ok(Call { method: Method::Post, path: with_query(format!("/token/{}", namespace()?), &query) })
    } else if args.delete {
        let token = need(&args.token, "the token (-t)")?;
        // In a path the pool stands before the token, unless the token names its pool already.
        let token = match pool {
            Some(pool) if !token.contains(':') => format!("{pool}:{token}"),
            _ => token.to_string(),
        };
        Ok(Call { method: Method::Delete, path: format!("/token/{}/{}", namespace()?, encode(&token)) })
    } else if args.list {
        let query: Vec<_> = pool.map(|pool| ("pool", pool)).into_iter().collect();
        Ok(Call { method: Method::Get, path: with_query(format!("/token/{}", namespace()?), &query) })
    } else if args.pools {
        Ok(Call { method: Method::Get, path: "/pools".to_string() })
    } else {
        Err("say what to do: -c creates a token, -d deletes one, -l lists them, -P lists pools".to_string())
    }
}

fn with_query(path: String, pairs: &[(&str, &str)]) -> String {
    let query: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
    if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
fn encode(text: &str) -> String {
    const RESERVED: &AsciiSet =
        &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Sends the call. Answers the status and the body, also for an error status. Follows no redirect and uses no
/// proxy, so that tokens go to the named server only.
fn send(
    host: &str,
    authorization: Option<String>,
    call: &Call,
) -> Result<(ureq::http::StatusCode, String), String> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_global(Some(TIMEOUT))
        .build()
        .into();
    let url = format!("http://{host}{}", call.path);
    let auth: Vec<(&str, String)> = authorization.map(|value| ("Authorization", value)).into_iter().collect();
    let answer = match call.method {
        Method::Get => with_headers(agent.get(&url), auth).call(),
        Method::Delete => with_headers(agent.delete(&url), auth).call(),
        Method::Post => with_headers(agent.post(&url), auth).send_empty(),
    };
    let mut answer = answer.map_err(reason)?;
    let body = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().map_err(reason)?;
    Ok((answer.status(), String::from_utf8_lossy(&body).into_owned()))
}

fn with_headers<B>(request: ureq::RequestBuilder<B>, all: Vec<(&str, String)>) -> ureq::RequestBuilder<B> {
    all.into_iter().fold(request, |request, (name, value)| request.header(name, value))
}

fn reason(e: ureq::Error) -> String {
    match e {
        ureq::Error::Io(e) => e.to_string(),
        other => other.to_string(),
    }
}
