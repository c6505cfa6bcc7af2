//! Fields of queries and forms, and links with changed fields.

use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};

use super::ask::part;
use crate::http::request::body::read_body;

/// Maximum size of a form: a job of 64 KiB whose every byte is escaped, and its other fields.
const MAX_FORM: usize = 256 << 10;

/// Fields in the order received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    pub fn parse(text: &str) -> Fields {
        let pairs = form_urlencoded::parse(text.as_bytes());
        Fields(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// Creates fields with these values.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Fields {
        Fields(pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Returns the first value of a field. An empty value counts as absent, as forms send it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// Returns the first value of a field, even if empty: an empty `reason` has a meaning.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| &**value)
    }

    /// Returns the first value of a field, or an empty text.
    pub fn or_empty(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let name = name.to_owned();
        self.0.iter().filter(move |(of, value)| *of == name && !value.is_empty()).map(|(_, value)| &**value)
    }

    /// Returns a query with these fields, some of them changed. `None` removes a field.
    pub fn link(&self, changed: &[(&str, Option<&str>)]) -> String {
        let kept = self.0.iter().filter(|(name, value)| {
            (!value.is_empty() || MAY_BE_EMPTY == name)
                && !ONCE.contains(&&**name)
                && changed.iter().all(|(of, _)| of != name)
        });
        let kept = kept.map(|(name, value)| (&**name, &**value));
        let given = changed.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
        query(kept.chain(given))
    }

    /// Like [`link`](Fields::link), from the beginning of a list: without the cursor.
    pub fn link_anew(&self, changed: &[(&str, Option<&str>)]) -> String {
        let changed: Vec<_> = changed.iter().copied().chain([("cursor", None)]).collect();
        self.link(&changed)
    }
}

/// The field whose empty value has a meaning.
const MAY_BE_EMPTY: &str = "reason";
/// Fields that links do not keep: result of an action, question, and selection.
const ONCE: [&str; 3] = ["done", "ask", "job"];

/// Formats a query.
pub fn query<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("?");
    for (name, value) in fields {
        if text.len() > 1 {
            text.push('&');
        }
        text.push_str(&part(name));
        text.push('=');
        text.push_str(&part(value));
    }
    text
}

/// A submitted form.
pub struct Filled(pub Fields);

impl<S: Sync> FromRequest<S> for Filled {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Filled, Response> {
        let body =
            read_body(request.into_body(), MAX_FORM, "the form is too large: 64 KiB of a job", None).await;
        let body = body.map_err(IntoResponse::into_response)?;
        Ok(Filled(Fields::parse(&String::from_utf8_lossy(&body))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_what_it_does_not_change() {
        let fields = Fields::parse("state=dead&reason=a%26b&cursor=x&done=paused&q=&job=1&job=2");
        assert_eq!(fields.get("reason"), Some("a&b"));
        assert_eq!((fields.get("q"), fields.all("job").count()), (None, 2));
        assert_eq!(fields.link(&[]), "?state=dead&reason=a%26b&cursor=x");
        assert_eq!(fields.link(&[("cursor", Some("y")), ("reason", None)]), "?state=dead&cursor=y");
        assert_eq!(Fields::parse("reason=&q=").link(&[]), "?reason=", "the jobs without a reason");
        assert_eq!(Fields::parse("reason=").text("reason"), Some(""));
        assert_eq!(
            Fields::parse("tz=Asia%2FTokyo").link(&[]),
            "?tz=Asia%2FTokyo",
            "a page's zone is its own"
        );
        assert_eq!(fields.link_anew(&[("state", Some("\"<"))]), "?reason=a%26b&state=%22%3C");
        let odd = "?a%26ask%3Ddestroy=1";
        assert_eq!(Fields::parse(&odd[1..]).link(&[]), odd, "a name does not become another field");
    }
}
