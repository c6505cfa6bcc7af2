//! The meaning of a Redis error, for the caller and for the connection.
//!
//! A command that fails inside a script has its own code (`READONLY`, `OOM`, ..). Redis 7 returns that code from the
//! script call; Redis 6.2 returns `ERR` with the code in the text. Both are handled alike.

use redis::{ErrorKind, ParsingError, RedisError};

use crate::clock::Micros;
use crate::error::{Error, Unreachable};

/// A failed exchange with a server. The text can be logged: one line, no secrets.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    text: String,
    kind: Kind,
    /// The connection must be replaced: it is broken, or its server is no longer the master.
    pub reconnect: bool,
    /// The server refuses writes because it was demoted: all connections to it must be replaced.
    pub not_master: bool,
    /// Set if the call did not start: in a cluster it may be sent again.
    pub not_begun: Option<NotBegun>,
    /// The server is out of memory.
    pub out_of_memory: bool,
    source: Option<RedisError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Away,
    Refused,
    Corrupt,
    /// The engine is closing.
    Closed,
    /// A partition cannot be used.
    Part(Unreachable),
}

/// Why a call did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// There was no connection to send it on.
    NotSent,
    /// It waited too long to be sent, and its caller is about to be answered.
    TooLate,
    /// Another node owns the slot: `host:port`, without a host if it is the host that was asked.
    Moved(String),
    /// The slot is migrating.
    Moving,
    /// The node does not serve the slot now: CLUSTERDOWN, LOADING, READONLY, MASTERDOWN.
    NotServed,
}

impl Fault {
    fn new(kind: Kind, reconnect: bool, text: impl Into<String>) -> Fault {
        Fault {
            text: text.into(),
            kind,
            reconnect,
            not_master: false,
            not_begun: None,
            out_of_memory: false,
            source: None,
        }
    }

    /// Adds the server to the text.
    pub fn at(mut self, server: &str) -> Fault {
        self.text = format!("redis {server}: {}", self.text);
        self
    }

    /// Returns the error for a server that did not answer in time or cannot be reached.
    pub fn away(text: impl Into<String>) -> Fault {
        Fault::new(Kind::Away, true, text)
    }

    /// Returns the error for calls to a closing engine, which has no connections any more.
    pub fn closed() -> Fault {
        Fault::new(Kind::Closed, true, "the engine is closing")
    }

    /// Returns the error for a call that was executed but may be lost in a failover.
    pub fn unsure(text: impl Into<String>) -> Fault {
        Fault::new(Kind::Away, false, text)
    }

    /// Returns the error for a call that waited too long to be sent: its caller is about to be answered.
    pub fn too_late() -> Fault {
        let fault = Fault::new(Kind::Away, false, "the call waited too long and was not sent");
        Fault { not_begun: Some(NotBegun::TooLate), ..fault }
    }

    /// Returns the error for a call without a connection.
    pub fn not_sent(text: impl Into<String>) -> Fault {
        Fault::away(text).unsent()
    }

    /// Marks the error as that of a call that was not sent.
    pub fn unsent(self) -> Fault {
        Fault { not_begun: Some(NotBegun::NotSent), ..self }
    }

    /// Returns the error for a partition that cannot be used now.
    pub fn part(why: Unreachable) -> Fault {
        Fault::new(Kind::Part(why), false, why.text())
    }

    /// Returns the error for a request that the server refuses.
    pub fn refused(text: impl Into<String>) -> Fault {
        Fault::new(Kind::Refused, false, text)
    }

    /// Returns the error for a reply that none of our scripts sends.
    pub fn unreadable(what: &str) -> Fault {
        Fault::new(Kind::Corrupt, false, format!("unexpected reply to {what}"))
    }

    /// Whether the same call may succeed later.
    pub fn may_heal(&self) -> bool {
        self.kind != Kind::Corrupt
    }

    /// Whether a partition cannot be used, so that nothing was done.
    pub fn is_of_part(&self) -> bool {
        matches!(self.kind, Kind::Part(_))
    }

    /// Whether the server replied with a refusal.
    pub fn is_refusal(&self) -> bool {
        self.kind == Kind::Refused
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        match fault.kind {
            Kind::Away => Error::away(fault),
            Kind::Refused if fault.out_of_memory => Error::out_of_memory(fault),
            Kind::Refused => Error::refused(fault),
            Kind::Corrupt => Error::corrupt(fault),
            Kind::Closed => Error::Closed,
            Kind::Part(why) => Error::Unreachable(why),
        }
    }
}

impl From<RedisError> for Fault {
    fn from(e: RedisError) -> Fault {
        let (code, detail) = code_and_detail(&e);
        let (kind, reconnect) = match e.kind() {
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => (Kind::Refused, true),
            ErrorKind::UnexpectedReturnType => (Kind::Corrupt, false),
            ErrorKind::Server(_) | ErrorKind::Extension => match code {
                // The server executed nothing, and cannot serve the call for a while.
                "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "ASK" | "MOVED" | "BUSY" => {
                    (Kind::Away, false)
                }
                LATE => (Kind::Away, false),
                // A failover demoted it: another server is the master now.
                READONLY | "NOAUTH" | "WRONGPASS" => (Kind::Refused, true),
                _ => (Kind::Refused, false),
            },
            // After a protocol error or a timeout, replies can no longer be matched to calls.
            _ => (Kind::Away, true),
        };
        let text = match (e.kind(), code) {
            (ErrorKind::AuthenticationFailed, _) => "the password was refused".to_owned(),
            // TLS errors: the detail says which.
            (ErrorKind::InvalidClientConfig, _) => {
                one_line(&format!("TLS: {}", e.detail().unwrap_or_default()))
            }
            (_, "") => one_line(&e.to_string()),
            (_, LATE) => "the Redis received the call after its deadline and did not execute it".to_owned(),
            (_, code) => one_line(&format!("{code} {detail}")),
        };
        let not_master = code == READONLY;
        let not_begun = match code {
            // MOVED 3999 127.0.0.1:6381
            "MOVED" => Some(NotBegun::Moved(detail.split(' ').nth(1).unwrap_or_default().to_owned())),
            "ASK" | "TRYAGAIN" => Some(NotBegun::Moving),
            "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | READONLY => Some(NotBegun::NotServed),
            _ => None,
        };
        let out_of_memory = code == "OOM";
        Fault { text, kind, reconnect, not_master, not_begun, out_of_memory, source: Some(e) }
    }
}

/// Error code of lua/clock.lua for a call after its deadline.
const LATE: &str = "LATE";
const READONLY: &str = "READONLY";

/// Returns the time of Redis's clock, in microseconds, if the call was refused because its deadline had passed.
pub fn late_at(e: &RedisError) -> Option<Micros> {
    match code_and_detail(e) {
        (LATE, detail) => detail.split(' ').next()?.parse().ok(),
        _ => None,
    }
}

/// Returns the code and the text of an error reply. The code is empty if the error is not a server's reply.
fn code_and_detail(e: &RedisError) -> (&str, &str) {
    let code = match e.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => e.code().unwrap_or_default(),
        _ => return ("", ""),
    };
    let detail = e.detail().unwrap_or_default();
    code_in_script_error(code, detail).unwrap_or((code, detail))
}

/// Redis 6.2 reports an error inside a script in one of these forms; the last one is an error that the script caught
/// and returned. Returns CODE and the detail:
///
/// ```text
/// ERR Error running script (call to f_SHA): @user_script:LINE: @user_script: LINE: -CODE detail
/// ERR Error running script (call to f_SHA): @user_script:LINE: CODE detail
/// @user_script: LINE: -CODE detail
/// ```
fn code_in_script_error<'a>(code: &str, detail: &'a str) -> Option<(&'a str, &'a str)> {
    let mut rest = match code {
        "ERR" => detail.strip_prefix("Error running script (call to ")?.split_once("): ")?.1,
        "@user_script:" => after_line(detail)?,
        _ => return None,
    };
    while let Some(place) = rest.strip_prefix("@user_script:") {
        rest = after_line(place)?;
    }
    let (code, detail) = rest.strip_prefix('-').unwrap_or(rest).split_once(' ')?;
    let is_code = !code.is_empty() && code.bytes().all(|b| b.is_ascii_uppercase());
    is_code.then_some((code, detail))
}

/// Returns the text after a line number and its colon.
fn after_line(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches([' ', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    Some(rest.strip_prefix(':')?.trim_start())
}

impl From<ParsingError> for Fault {
    fn from(e: ParsingError) -> Fault {
        Fault::from(RedisError::from(e))
    }
}

/// Returns the error's text in one line. It contains commands and reasons, never arguments.
fn one_line(text: &str) -> String {
    // Script errors end with the script's hash and line, which do not help an operator.
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
            ("NOREPLICAS", false, false),
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
            assert!(fault.to_string().starts_with(code), "the text should begin with the code: {fault}");
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

    /// As Redis 6.2.14 sent them.
    const CALL: &str =
        "Error running script (call to f_1f8f4cfba6f3375f8c4ec02b9de4361a5dea5c64): @user_script:1:";
    const REPLICA: &str = "You can't write against a read only replica.";
    const TOO_FEW: &str = "Not enough good replicas to write.";
    const NO_DISK: &str =
        "Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.";
    const FULL: &str = "command not allowed when used memory > 'maxmemory'.";
    const TYPE: &str = "Operation against a key holding the wrong kind of value";

    #[test]
    fn the_code_inside_the_text_of_a_script_error_of_redis_6_counts() {
        for (code, detail, reconnect) in [
            ("READONLY", REPLICA, true),
            ("NOREPLICAS", TOO_FEW, false),
            ("MISCONF", NO_DISK, false),
            ("OOM", FULL, false),
        ] {
            let raised = reply("ERR", &format!("{CALL} @user_script: 1: -{code} {detail}"));
            let returned = reply("@user_script:", &format!("1: -{code} {detail}"));
            let plain = reply(code, detail);
            for fault in [raised, returned, plain] {
                assert_eq!(fault.to_string(), format!("{code} {detail}"), "the text of {fault:?}");
                assert_eq!((fault.reconnect, fault.not_master), (reconnect, reconnect), "{fault:?}");
                assert!(fault.is_refusal(), "the server answered: {fault:?}");
                assert_eq!(Error::from(fault.clone()).is_out_of_memory(), code == "OOM", "{fault:?}");
            }
        }
        let wrong_type = reply("ERR", &format!("{CALL} WRONGTYPE {TYPE}"));
        assert_eq!(wrong_type.to_string(), format!("WRONGTYPE {TYPE}"));
    }

    #[test]
    fn a_text_that_only_mentions_a_code_is_no_such_error() {
        for detail in [
            "unknown command 'READONLY', with args beginning with: ",
            "Error running script (call to f_ab): @user_script:1: -READONLY",
            "Error running script (call to f_ab): @user_script:3: attempt to call field 'READONLY x' (a nil value)",
            "Error compiling script (new function): user_script:1: READONLY near 'x'",
            "Error running script",
            "",
        ] {
            let fault = reply("ERR", detail);
            assert!(!fault.reconnect && !fault.not_master, "{detail:?} says nothing of a master: {fault:?}");
        }
    }

    #[test]
    fn a_late_call_tells_the_time() {
        let line = b"-LATE 1700000000000001 the deadline was earlier\r\n";
        let value = redis::parse_redis_value(line).expect("an error reply is a value");
        let error = value.extract_error().expect_err("the reply is an error");
        assert_eq!(late_at(&error), Some(1_700_000_000_000_001), "{error:?}");
        let fault = Fault::from(error);
        assert!(!fault.is_refusal() && !fault.reconnect, "nothing is wrong with the connection: {fault:?}");
    }
}
