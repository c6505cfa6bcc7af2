//! Parses paths of the public port by position: `/api/:namespace/:queue/:what/:name`. Independent of route patterns.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::http::answer::error::{ApiError, NameIn};
use crate::job::JobId;
use crate::name::{JobKey, NameError, Namespace, Queue, QueueName, ScheduleName};

/// Maximum number of queues in a consume, counting duplicates.
pub const MAX_QUEUES: usize = 100;
pub const NO_QUEUE: ApiError = ApiError::bad("invalid queue name(s)");

/// The first parts after `/api/`, undecoded.
pub type Parts<'a> = [Option<&'a str>; 5];

/// Splits a path. Returns no parts if it ends in a slash, since no route matches.
pub fn parts(path: &str) -> Parts<'_> {
    let mut rest = path.strip_prefix("/api/").filter(|rest| !rest.ends_with('/'));
    let mut parts = [None; 5];
    for place in &mut parts {
        let Some(text) = rest else { break };
        // Byte by byte: `split` takes a third more instructions for such short parts.
        let (part, after) = match text.bytes().position(|byte| byte == b'/') {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        (*place, rest) = (Some(part), after);
    }
    parts
}

/// Names in a path, percent-decoded; empty if absent.
#[derive(Debug)]
pub struct Names<'a> {
    namespace: Cow<'a, str>,
    queue: Cow<'a, str>,
    /// The part before `name`.
    what: &'a str,
    /// The part after `/job/` or `/key/`.
    name: Cow<'a, str>,
}

impl<'a> Names<'a> {
    /// Fails if a decoded part is not UTF-8.
    pub fn of([namespace, queue, what, name, _]: Parts<'a>) -> Result<Names<'a>, ApiError> {
        let what = what.unwrap_or_default();
        Ok(Names { namespace: decoded(namespace)?, queue: decoded(queue)?, what, name: decoded(name)? })
    }

    /// Returns the names of a queue that are decoded already.
    pub fn of_queue(namespace: &'a str, queue: &'a str) -> Names<'a> {
        Names { namespace: namespace.into(), queue: queue.into(), what: "", name: "".into() }
    }

    pub fn namespace(&self) -> Result<Namespace, ApiError> {
        Namespace::parse(&self.namespace).map_err(|error| ApiError::bad_name(NameIn::Namespace, error))
    }

    pub fn queue(&self) -> Result<Queue, ApiError> {
        let name = QueueName::parse(&self.queue);
        // Both lengths are checked before any characters.
        if name == Err(NameError::TooLong) {
            return Err(bad_queue(NameError::TooLong));
        }
        Ok(Queue { namespace: self.namespace()?, name: name.map_err(bad_queue)? })
    }

    /// Returns the namespace and queues of a consume, at most one queue more than [`MAX_QUEUES`]: the token has not
    /// been checked yet, so a long list must be cheap.
    pub fn queues(&self) -> Result<(Namespace, Vec<QueueName>), ApiError> {
        let namespace = self.namespace()?;
        let names = self.queue.split(',').filter(|name| !name.is_empty()).take(MAX_QUEUES + 1);
        let names: Result<Vec<QueueName>, NameError> = names.map(QueueName::parse_for_consume).collect();
        let names = names.map_err(bad_queue)?;
        if names.is_empty() { Err(NO_QUEUE) } else { Ok((namespace, names)) }
    }

    /// Returns `None` if it is not a valid id.
    pub fn job_id(&self) -> Option<JobId> {
        JobId::parse(&self.name)
    }

    pub fn key(&self) -> Option<JobKey> {
        JobKey::parse(&self.name)
    }

    /// Returns the name after `/_schedules/`, or the text if it is not a valid name.
    pub fn schedule(&self) -> Result<ScheduleName, String> {
        let name = percent_decode_str(self.what).decode_utf8_lossy();
        ScheduleName::parse(&name).ok_or_else(|| name.into_owned())
    }
}

fn decoded(part: Option<&str>) -> Result<Cow<'_, str>, ApiError> {
    let part = part.unwrap_or_default();
    // Most have no escapes. The decoder takes 300 instructions to find that out.
    if !part.as_bytes().contains(&b'%') {
        return Ok(Cow::Borrowed(part));
    }
    percent_decode_str(part).decode_utf8().map_err(|_| bad_queue(NameError::Forbidden))
}

const fn bad_queue(error: NameError) -> ApiError {
    ApiError::bad_name(NameIn::Queue, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against parts read at another position than in routes.
    #[test]
    fn parts_stand_at_their_positions() {
        for (path, expected) in [
            ("/api/ns", [Some("ns"), None, None, None, None]),
            ("/api/ns/q", [Some("ns"), Some("q"), None, None, None]),
            ("/api/ns/q/job/id", [Some("ns"), Some("q"), Some("job"), Some("id"), None]),
            ("/api/ns/q/job/id/touch", [Some("ns"), Some("q"), Some("job"), Some("id"), Some("touch")]),
            // The sixth part is ignored.
            ("/api/ns/q/job/id/touch/x", [Some("ns"), Some("q"), Some("job"), Some("id"), Some("touch")]),
            ("/api/n%2Fs/q", [Some("n%2Fs"), Some("q"), None, None, None]),
            ("/api//q", [Some(""), Some("q"), None, None, None]),
            ("/api/ns//job", [Some("ns"), Some(""), Some("job"), None, None]),
            ("/api/", [Some(""), None, None, None, None]),
            ("/api/ns/", [None; 5]),
            ("/api/ns/q/", [None; 5]),
            ("/api", [None; 5]),
            ("/ping", [None; 5]),
            ("", [None; 5]),
        ] {
            assert_eq!(parts(path), expected, "{path}");
        }
    }

    /// Guards against escapes that split a part, and against bytes that are not text.
    #[test]
    fn names_are_decoded_once_and_checked() {
        let status = |path: &str| match Names::of(parts(path)).and_then(|names| names.queue()) {
            Ok(queue) => Ok(queue.to_string()),
            Err(ApiError::Refused(status, _)) => Err(status.as_u16()),
            Err(error) => panic!("{path}: {error:?}"),
        };
        for (path, expected) in [
            ("/api/ns/q", Ok("ns/q")),
            ("/api/n%73/%71", Ok("ns/q")),
            ("/api/ns/q/peek", Ok("ns/q")),
            ("/api/ns/a%2Fb", Err(400)),
            ("/api/n%2Fs/q", Err(400)),
            ("/api/ns/%2571", Err(400)), // decoded once it is `%71`
            ("/api/ns/%ff", Err(400)),
            ("/api/%ff/q", Err(400)),
            ("/api/ns/q/job/%ff", Err(400)),
            ("/api/ns/%zz", Err(400)),
            ("/api//q", Err(400)),
            ("/api/ns//peek", Err(400)),
            ("/api/ns", Err(400)),
            ("/api/ns/q/", Err(400)),
        ] {
            assert_eq!(status(path), expected.map(str::to_owned), "{path}");
        }
        let names = Names::of(parts("/api/ns/%61,b,,c")).expect("text");
        let (namespace, queues) = names.queues().expect("names");
        let queues: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
        assert_eq!((namespace.as_str(), queues), ("ns", vec!["a", "b", "c"]), "empty names are ignored");
        let names = Names::of(parts("/api/ns/q/key/a%2Fb")).expect("text");
        assert_eq!(names.key(), JobKey::parse("a/b"), "the part after /key/");
    }
}
