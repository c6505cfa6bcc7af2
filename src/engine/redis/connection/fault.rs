//! What a Redis error means: for the caller, and for the connection that it came from.

use redis::{ErrorKind, ParsingError, RedisError, ServerErrorKind};

use crate::error::Error;

/// A failed exchange. Its text may be logged: no secrets, one line.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    text: String,
    kind: Kind,
    /// The connection is of no more use: broken, or to a server that is no longer the master.
    pub reconnect: bool,
    source: Option<RedisError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Away,
    Refused,
    Corrupt,
}

impl Fault {
    fn new(kind: Kind, reconnect: bool, text: impl Into<String>) -> Fault {
        Fault { text: text.into(), kind, reconnect, source: None }
    }

    /// The same, saying which server.
    pub fn at(mut self, server: &str) -> Fault {
        self.text = format!("redis {server}: {}", self.text);
        self
    }

    /// The server did not answer in time, or cannot be reached.
    pub fn away(text: impl Into<String>) -> Fault {
        Fault::new(Kind::Away, true, text)
    }

    /// The server will not have it.
    pub fn refused(text: impl Into<String>) -> Fault {
        Fault::new(Kind::Refused, false, text)
    }

    /// A reply that no script of ours gives.
    pub fn unreadable(what: &str) -> Fault {
        Fault::new(Kind::Corrupt, false, format!("unexpected reply to {what}"))
    }

    /// Whether the server answered, and refused.
    pub fn is_refusal(&self) -> bool {
        self.kind == Kind::Refused
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault.kind {
            Kind::Away => Error::away(fault),
            Kind::Refused => Error::refused(fault),
            Kind::Corrupt => Error::corrupt(fault),
        }
    }
}

impl From<RedisError> for Fault {
    fn from(e: RedisError) -> Fault {
        use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
        let (kind, reconnect) = match e.kind() {
            // It said itself that it did nothing, and that it is not the one to ask for a while.
            ErrorKind::Server(BusyLoading | MasterDown | ClusterDown | TryAgain) => (Kind::Away, false),
            // A failover made a replica of it: another is the master now.
            ErrorKind::Server(ReadOnly) => (Kind::Refused, true),
            ErrorKind::Server(_) => (Kind::Refused, false),
            ErrorKind::Extension => match e.code() {
                Some("NOAUTH" | "WRONGPASS") => (Kind::Refused, true),
                Some("BUSY") => (Kind::Away, false),
                _ => (Kind::Refused, false),
            },
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => (Kind::Refused, true),
            ErrorKind::UnexpectedReturnType => (Kind::Corrupt, false),
            // A broken stream of replies cannot be trusted any more, and neither can one that timed out.
            _ => (Kind::Away, true),
        };
        Fault { text: one_line(&e), kind, reconnect, source: Some(e) }
    }
}

impl From<ParsingError> for Fault {
    fn from(e: ParsingError) -> Fault {
        Fault::from(RedisError::from(e))
    }
}

/// The error's own words. They name commands and reasons, never arguments.
fn one_line(e: &RedisError) -> String {
    let text = match (e.kind(), e.code(), e.detail()) {
        (ErrorKind::AuthenticationFailed, _, _) => "the password was refused".to_owned(),
        (_, Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => e.to_string(),
    };
    // Script errors end in where they were raised, which says nothing to an operator.
    let text = text.split(" script: ").next().unwrap_or_default();
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// `Result` of an exchange.
pub type Outcome<T> = Result<T, Fault>;

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn reply(code: &str, detail: &str) -> Fault {
        let line = format!("-{code} {detail}\r\n");
        let value = redis::parse_redis_value(line.as_bytes()).expect("an error reply is a value");
        Fault::from(value.extract_error().expect_err("the reply is an error"))
    }

    #[test]
    fn replies_mean_away_or_refused() {
        for (code, away, reconnect) in [
            ("LOADING", true, false),
            ("MASTERDOWN", true, false),
            ("BUSY", true, false),
            ("READONLY", false, true),
            ("NOAUTH", false, true),
            ("WRONGPASS", false, true),
            ("OOM", false, false),
            ("MISCONF", false, false),
            ("NOPERM", false, false),
            ("ERR", false, false),
        ] {
            let fault = reply(code, "some words. script: abc, on @user_script:3.");
            let error = Error::from(fault.clone());
            let is_away = matches!(error, Error::Away(_));
            assert_eq!(
                (is_away, fault.reconnect),
                (away, reconnect),
                "{code}: (away, reconnect) of {fault:?}"
            );
            assert!(fault.to_string().starts_with(code), "the code should be told: {fault}");
            assert!(!fault.to_string().contains("user_script"), "the script's line is noise: {fault}");
            let source = error.source().and_then(std::error::Error::source);
            let source = source.and_then(|source| source.downcast_ref::<RedisError>());
            assert_eq!(
                source.and_then(RedisError::code),
                Some(code),
                "the client's error is the last source"
            );
        }
    }
}
