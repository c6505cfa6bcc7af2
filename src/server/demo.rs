//! Output of a server that was started without a configuration: its addresses, and commands to try, with a token for
//! the namespace `demo`.

use std::io::Write as _;
use std::net::SocketAddr;

use super::error::ServerError;
use crate::admin::Scope;
use crate::admin::tokens::TokenManager;
use crate::config::PoolConfig;
use crate::name::{Namespace, PoolName};
use crate::process::log::AUDIT;

/// Returns a token for the namespace `demo` of the default pool: an existing one, or a new one.
pub async fn token(tokens: &TokenManager) -> Result<String, ServerError> {
    let failed = |error: &dyn std::fmt::Display| ServerError::Failed(format!("the demo token: {error}"));
    let namespace = Namespace::parse("demo").map_err(|e| failed(&e))?;
    let scope = Scope { pool: PoolName::default_pool(), namespace };
    if let Some(token) = tokens.list(&scope).await.map_err(|e| failed(&e))?.into_keys().next() {
        return Ok(token);
    }
    let created = tokens.create(&scope, None, "demo").await.map_err(|e| failed(&e))?;
    tracing::info!(target: AUDIT, by = "this server", token = created.hash(), "a token was created for the demo");
    Ok(created.reveal().to_owned())
}

/// Prints the addresses, where jobs are stored, and the commands. `pool` is the default one.
pub fn print(api: SocketAddr, admin: SocketAddr, pool: &PoolConfig, token: &str) {
    let data = match pool.path.as_deref() {
        Some(path) => std::path::absolute(path).unwrap_or(path.into()).display().to_string(),
        None => "the Redis of pool default".into(),
    };
    // The server runs even if the output cannot be written.
    let _ = write!(
        std::io::stdout(),
        "\
Dormouse {version} is up.
  API             http://{api}
  admin           http://{admin}
  dashboard       http://{admin}/ui/
  jobs live in    {data}

Try it in another terminal, line by line or all at once:

  # publish a job that is due in 2 seconds
  curl -X PUT -H 'X-Token: {token}' 'http://{api}/api/demo/hello?delay=2&tries=3' -d 'good morning'; echo

  # wait for it, up to 5 seconds
  JOB=$(curl -s -H 'X-Token: {token}' 'http://{api}/api/demo/hello?timeout=5&ttr=30'); echo \"$JOB\"

  # done with it: without this it comes back after 30 seconds
  ID=$(echo \"$JOB\" | sed 's/.*\"job_id\":\"\\([^\"]*\\).*/\\1/')
  curl -i -X DELETE -H 'X-Token: {token}' \"http://{api}/api/demo/hello/job/$ID\"

  # nothing is left: no job available
  curl -H 'X-Token: {token}' 'http://{api}/api/demo/hello'; echo

  # a token for a namespace of your own: dormouse token new -n my-team, or
  curl -X POST 'http://{admin}/token/my-team?description=me'
",
        version = env!("CARGO_PKG_VERSION"),
    );
}
