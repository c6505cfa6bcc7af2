//! Validated names. A `Namespace`, `QueueName`, `PoolName`, `ScheduleName`, `JobKey`, `IdempotencyKey` or `Token` is
//! always valid, so no other module checks its characters.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Maximum length of a namespace or queue name in bytes: storage formats keep the length in one byte.
pub const MAX_NAME: usize = 255;

/// Why a string is not a valid name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("too long: at most {MAX_NAME} bytes")]
    TooLong,
    #[error("forbidden characters: only letters, digits, - and _")]
    Forbidden,
}

fn is_name(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn check(s: &str) -> Result<Arc<str>, NameError> {
    if s.len() > MAX_NAME {
        return Err(NameError::TooLong);
    }
    if !is_name(s) {
        return Err(NameError::Forbidden);
    }
    Ok(s.into())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name!(
    /// A tenant: each queue and each token belongs to one.
    Namespace
);
name!(
    /// A queue inside a namespace.
    QueueName
);
name!(
    /// A store of jobs, as named by `[Pool.<name>]` in the configuration.
    PoolName
);

impl Namespace {
    /// Fails if `s` is empty, longer than [`MAX_NAME`], or has characters other than `[-_A-Za-z0-9]`.
    pub fn parse(s: &str) -> Result<Namespace, NameError> {
        check(s).map(Namespace)
    }
}

impl QueueName {
    /// Parses the name of a queue to publish to. Fails like [`Namespace::parse`], and for a leading `_`.
    pub fn parse(s: &str) -> Result<QueueName, NameError> {
        if s.len() <= MAX_NAME && s.starts_with('_') {
            return Err(NameError::Forbidden);
        }
        check(s).map(QueueName)
    }

    /// Returns the first name in sort order.
    pub fn first() -> QueueName {
        QueueName("-".into())
    }

    /// Returns the name directly before this one in sort order, so that a list continued after it begins with this
    /// queue. `None` for the first name.
    pub fn just_before(&self) -> Option<QueueName> {
        let (last, rest) = self.0.as_bytes().split_last().expect("a name is not empty");
        let rest = std::str::from_utf8(rest).expect("a name is ASCII");
        let before = match last {
            b'-' => return (!rest.is_empty()).then(|| QueueName(rest.into())),
            b'0' => '-',
            b'A' => '9',
            b'_' => 'Z',
            b'a' => '_',
            other => char::from(other - 1),
        };
        // The longest name with this prefix sorts last.
        let name = format!("{rest}{before}");
        Some(QueueName(format!("{name:z<MAX_NAME$}").into()))
    }

    /// Parses the name of a queue to consume from, which may begin with `_`: lmstfy allows that here only.
    pub fn parse_for_consume(s: &str) -> Result<QueueName, NameError> {
        check(s).map(QueueName)
    }
}

name!(
    /// A schedule of a namespace.
    ScheduleName
);

impl Serialize for ScheduleName {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl ScheduleName {
    /// Maximum length in bytes.
    pub const MOST: usize = 100;

    /// Parses 1 to 100 of `[-_.A-Za-z0-9]`, not starting with `_` or `.`. Returns `None` for any other text.
    pub fn parse(s: &str) -> Option<ScheduleName> {
        let fits = (1..=ScheduleName::MOST).contains(&s.len()) && !s.starts_with(['_', '.']);
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        (fits && s.bytes().all(plain)).then(|| ScheduleName(s.into()))
    }

    /// Returns the first name in sort order.
    pub fn first() -> ScheduleName {
        ScheduleName("-".into())
    }
}

/// A producer's name for a job, unique in its queue: 1 to 255 bytes of printable ASCII without blanks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobKey(Arc<str>);

impl JobKey {
    /// Returns `None` for any other text.
    pub fn parse(s: &str) -> Option<JobKey> {
        let fits = (1..=MAX_NAME).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| JobKey(s.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies a request, so that a repetition is recognized: any 1 to 255 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IdempotencyKey(Arc<[u8]>);

impl IdempotencyKey {
    /// Returns `None` for an empty value and for more than 255 bytes.
    pub fn new(bytes: &[u8]) -> Option<IdempotencyKey> {
        (1..=MAX_NAME).contains(&bytes.len()).then(|| IdempotencyKey(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Pool of every token without a `pool:` prefix.
pub const DEFAULT_POOL: &str = "default";

/// Allows lookups in a map of pools by text.
impl Borrow<str> for PoolName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PoolName {
    /// Returns the pool of every token without a `pool:` prefix.
    pub fn default_pool() -> PoolName {
        PoolName(DEFAULT_POOL.into())
    }

    /// Fails like [`Namespace::parse`].
    pub fn parse(s: &str) -> Result<PoolName, NameError> {
        check(s).map(PoolName)
    }

    /// Returns whether this is the pool of tokens without a prefix.
    pub fn is_default(&self) -> bool {
        &*self.0 == DEFAULT_POOL
    }
}

/// A token's secret part, without the pool. `Debug` does not show it, so that it cannot be logged.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// Accepts any non-empty text.
    pub fn new(s: &str) -> Option<Token> {
        if s.is_empty() { None } else { Some(Token(s.into())) }
    }

    /// Returns the secret: for the store and for the reply to its owner, never for a log.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns eight hex digits that identify the token in logs and metrics, the same in every process, without
    /// revealing it.
    pub fn hash(&self) -> String {
        format!("{:08x}", xxhash_rust::xxh3::xxh3_64(self.0.as_bytes()) as u32)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// A queue with its namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Queue {
    pub namespace: Namespace,
    pub name: QueueName,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One or more queues of one namespace, in order of priority.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct QueueList {
    namespace: Namespace,
    names: Arc<[QueueName]>,
}

impl QueueList {
    /// Returns `None` if there is no name. Duplicates after the first are dropped.
    pub fn new(namespace: Namespace, names: impl IntoIterator<Item = QueueName>) -> Option<QueueList> {
        let mut list: Vec<QueueName> = names.into_iter().collect();
        if list.len() > 1 {
            let mut seen = HashSet::with_capacity(list.len());
            list.retain(|name| seen.insert(name.clone()));
        }
        if list.is_empty() { None } else { Some(QueueList { namespace, names: list.into() }) }
    }

    /// Returns their namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the names in order of priority. Never empty.
    pub fn names(&self) -> &[QueueName] {
        &self.names
    }

    /// Returns the queues in order of priority.
    pub fn queues(&self) -> impl Iterator<Item = Queue> + '_ {
        self.names.iter().map(|name| Queue { namespace: self.namespace.clone(), name: name.clone() })
    }
}

impl From<Queue> for QueueList {
    fn from(queue: Queue) -> QueueList {
        QueueList { namespace: queue.namespace, names: [queue.name].into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_stands_between_a_name_and_the_one_just_before_it() {
        let name = |text: &str| QueueName::parse_for_consume(text).expect("a name");
        for text in ["a", "mail", "A", "0", "_", "x-", "x0", "xA", "x_", "xa", "zz", "-a"] {
            let before = name(text).just_before().expect("it is not the first");
            assert!(before < name(text), "{before} < {text}");
            assert!(QueueName::parse_for_consume(before.as_str()).is_ok(), "{before} is a name");
            // All short names, and the longest of each first letters.
            let letters = "-0159AKZ_akmz";
            let short = letters.chars().map(|c| format!("{}{c}", &text[..text.len() - 1]));
            let longer = short.clone().flat_map(|s| letters.chars().map(move |c| format!("{s}{c}")));
            for other in short.chain(longer).map(|text| name(&text)) {
                assert!(other <= before || other >= name(text), "{other} is between {before} and {text}");
            }
        }
        assert_eq!(QueueName::first().just_before(), None);
    }

    #[test]
    fn names_are_letters_digits_dash_and_underscore() {
        for good in ["a", "A-b_9", "-ok", &"a".repeat(255)] {
            assert!(QueueName::parse(good).is_ok(), "{good} should be a name");
        }
        for bad in ["", "a.b", "a,b", "a b", "é", "a/b"] {
            assert_eq!(QueueName::parse(bad), Err(NameError::Forbidden), "{bad:?}");
        }
        assert_eq!(Namespace::parse(&"a".repeat(256)), Err(NameError::TooLong));
    }

    #[test]
    fn a_leading_underscore_is_for_consume_only() {
        assert_eq!(QueueName::parse("_a"), Err(NameError::Forbidden));
        assert!(QueueName::parse_for_consume("_a").is_ok(), "consume takes _a");
    }

    #[test]
    fn a_list_keeps_each_name_where_it_stood_first() {
        let name = |text: &str| QueueName::parse(text).expect("a literal");
        let namespace = || Namespace::parse("ns").expect("a literal");
        let list = QueueList::new(namespace(), ["b", "a", "b", "c", "a"].map(name)).expect("not empty");
        assert_eq!(list.names(), ["b", "a", "c"].map(name), "in the order of their first places");
        assert_eq!(QueueList::new(namespace(), []), None, "a list without a name");
        // Guards against quadratic time: searching the previous names for each name would take minutes.
        let many = (0..300_000).map(|i| name(&format!("{i}")));
        assert_eq!(QueueList::new(namespace(), many).map(|list| list.names().len()), Some(300_000));
    }

    #[test]
    fn a_key_is_printable_and_has_no_blanks() {
        for good in ["a", "order:1/2", "!~", &"k".repeat(255)] {
            assert!(JobKey::parse(good).is_some(), "{good:?} should be a key");
        }
        for bad in ["", " ", "a b", "a\t", "é", "\u{7f}", &"k".repeat(256)] {
            assert_eq!(JobKey::parse(bad), None, "{bad:?} should be no key");
        }
        for (bytes, fits) in [(0, false), (1, true), (255, true), (256, false)] {
            assert_eq!(IdempotencyKey::new(&vec![0; bytes]).is_some(), fits, "{bytes} bytes");
        }
    }

    #[test]
    fn a_schedule_has_a_short_name_without_a_mark_in_front() {
        for good in ["a", "nightly.report", "-x", "9_", &"n".repeat(100)] {
            assert!(ScheduleName::parse(good).is_some(), "{good:?} should be a name");
        }
        for bad in ["", "_a", ".a", "a b", "a/b", "é", &"n".repeat(101)] {
            assert_eq!(ScheduleName::parse(bad), None, "{bad:?} should be no name");
        }
    }

    #[test]
    fn debug_does_not_show_a_token() {
        let token = Token::new("01SECRET").unwrap(); // not empty
        assert!(!format!("{token:?}").contains("SECRET"), "a token's Debug shows the secret");
    }
}
