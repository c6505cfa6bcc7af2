//! Checks every response that a test's client gets against the OpenAPI document of its port: status, content type,
//! headers, and the schema of the body.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use jsonschema::Validator;
use parking_lot::Mutex;
use reqwest::header::HeaderMap;
use reqwest::{Method, Url};
use serde_json::{Map, Value, json};

use super::client::Response;

/// The documents, as served by the ports.
pub static PUBLIC: LazyLock<Document> =
    LazyLock::new(|| Document::new("public", include_str!("../../docs/openapi.yaml")));
pub static ADMIN: LazyLock<Document> =
    LazyLock::new(|| Document::new("admin", include_str!("../../docs/openapi-admin.yaml")));

/// Document that applies to each local port.
static PORTS: LazyLock<Mutex<HashMap<u16, &'static LazyLock<Document>>>> = LazyLock::new(Mutex::default);

/// Headers that callers interpret: each must be documented.
const TOLD: [&str; 4] = ["etag", "idempotency-replayed", "retry-after", "www-authenticate"];

/// Name of the file to which the status of each reply is appended, to find statuses that no test sees.
pub const SEEN: &str = "TESTS_SEEN";

/// Checks replies from these addresses against the document, from now on.
pub fn serves(public: SocketAddr, admin: SocketAddr) {
    PORTS.lock().extend([(public.port(), &PUBLIC), (admin.port(), &ADMIN)]);
}

/// Panics if the reply does not conform to the document. Ignores replies of servers other than the tests' own.
pub fn hold(method: &Method, url: &Url, response: &Response) {
    let document = url.port().and_then(|port| PORTS.lock().get(&port).copied());
    let Some(document) = document else { return };
    // The path of the outer address used in these tests, which the admin port strips.
    let inner = url.path().strip_prefix("/dormouse").map(|rest| if rest.is_empty() { "/" } else { rest });
    let path = inner.filter(|rest| rest.starts_with('/')).unwrap_or(url.path());
    if let Err(why) = document.holds(method.as_str(), path, response) {
        panic!(
            "the {} document does not have this answer: {why}\n  asked {method} {url}\n  came {} {:?}\n  {}",
            document.name,
            response.status,
            response.headers,
            response.text.chars().take(2000).collect::<String>()
        );
    }
}

/// The OpenAPI document of a port.
pub struct Document {
    pub name: &'static str,
    pub json: Value,
    /// Compiled on demand, by path of the schema.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Document {
    fn new(name: &'static str, text: &str) -> Document {
        let json = serde_json::from_str(text).expect("a document is JSON");
        Document { name, json, validators: Mutex::default() }
    }

    /// Returns all paths and their contents.
    pub fn paths(&self) -> &Map<String, Value> {
        self.json["paths"].as_object().expect("a document has paths")
    }

    /// Resolves a reference.
    pub fn resolved<'a>(&'a self, mut part: &'a Value) -> &'a Value {
        while let Some(place) = part["$ref"].as_str() {
            let found = place.strip_prefix('#').and_then(|place| self.json.pointer(place));
            part = found.unwrap_or_else(|| panic!("the {} document has no {place}", self.name));
        }
        part
    }

    /// Returns the template of a path. As in the router, literal parts take precedence over parameters.
    fn template(&self, path: &str) -> Option<&str> {
        let parts: Vec<&str> = path.split('/').collect();
        let is_open = |part: &str| part.starts_with('{');
        let fits = |template: &&String| {
            let own: Vec<&str> = template.split('/').collect();
            let fits = |(own, part): (&&str, &&str)| own == part || is_open(own) && !part.is_empty();
            own.len() == parts.len() && own.iter().zip(&parts).all(fits)
        };
        let fitting = self.paths().keys().filter(fits);
        fitting
            .min_by_key(|template| template.split('/').map(is_open).collect::<Vec<_>>())
            .map(String::as_str)
    }

    /// Returns how a response differs from its documentation.
    pub fn holds(&self, method: &str, path: &str, response: &Response) -> Result<(), String> {
        if path == "/" || path.starts_with("/ui") {
            // The pages of the dashboard.
            return Ok(());
        }
        let (template, method) = (self.template(path), method.to_ascii_lowercase());
        let operation = template.and_then(|template| self.paths()[template].get(&method));
        see(self.name, &method, template.filter(|_| operation.is_some()), response.status);
        let Some(operation) = operation else {
            // Statuses checked before routing, or before the method is known.
            return match response.status {
                401 | 403 | 429 | 503 => Ok(()),
                404 if method == "head" || response.says() == "api not found" => Ok(()),
                _ => Err("there is no such operation, so 404 `api not found` was expected".into()),
            };
        };
        let answers = operation["responses"].as_object().expect("an operation has responses");
        let answer = answers.get(&response.status.to_string()).ok_or_else(|| {
            format!("of its statuses {:?} one was expected", answers.keys().collect::<Vec<_>>())
        })?;
        let answer = self.resolved(answer);
        self.headers_hold(answer, &response.headers)?;
        let place = format!("{method} {} {}", template.unwrap_or_default(), response.status);
        self.body_holds(&place, answer, method == "head", response)
    }

    fn headers_hold(&self, answer: &Value, headers: &HeaderMap) -> Result<(), String> {
        let none = Map::new();
        let documented = answer["headers"].as_object().unwrap_or(&none);
        for (name, of) in documented {
            let of = self.resolved(of);
            let Some(value) = headers.get(name) else {
                if of["required"] == true {
                    return Err(format!("the header {name} was expected"));
                }
                continue;
            };
            let text = String::from_utf8_lossy(value.as_bytes());
            let value = match text.parse::<u64>() {
                Ok(number) if of["schema"]["type"] == "integer" => json!(number),
                _ => json!(text),
            };
            self.fits(&format!("header {name}"), &of["schema"], &value)?;
        }
        let is_told = |name: &&str| documented.keys().any(|of| of.eq_ignore_ascii_case(name));
        match TOLD.iter().find(|name| headers.contains_key(**name) && !is_told(name)) {
            Some(name) => Err(format!("no header {name} was expected")),
            None => Ok(()),
        }
    }

    fn body_holds(&self, place: &str, answer: &Value, head: bool, response: &Response) -> Result<(), String> {
        let content = answer["content"].as_object();
        let Some(content) = content.filter(|_| !head) else {
            return if response.text.is_empty() { Ok(()) } else { Err("no body was expected".into()) };
        };
        let of_type = response.headers.get("content-type").and_then(|of_type| of_type.to_str().ok());
        let Some(of_type) = of_type else {
            let may = answer["x-may-be-empty"] == true && response.text.is_empty();
            return if may { Ok(()) } else { Err("a content type was expected".into()) };
        };
        let of_type = of_type.split(';').next().unwrap_or_default().trim();
        let known = || format!("a content type of {:?} was expected", content.keys().collect::<Vec<_>>());
        let body = content.get(of_type).ok_or_else(known)?;
        let value = match of_type {
            "application/json" => serde_json::from_str(&response.text)
                .map_err(|error| format!("a body of JSON was expected: {error}"))?,
            _ => json!(response.text),
        };
        self.fits(&format!("{place} {of_type}"), &body["schema"], &value)
    }

    /// Checks a value against a schema of this document. `place` is the schema's path.
    pub fn fits(&self, place: &str, schema: &Value, value: &Value) -> Result<(), String> {
        let validator = self.validators.lock().get(place).cloned();
        let validator = validator.unwrap_or_else(|| {
            let schemas = &self.json["components"]["schemas"];
            let whole = json!({ "allOf": [schema], "components": { "schemas": schemas } });
            let made = jsonschema::draft202012::new(&whole);
            let made = Arc::new(made.unwrap_or_else(|error| panic!("the schema of {place}: {error}")));
            self.validators.lock().insert(place.to_owned(), made.clone());
            made
        });
        let mut wrong = String::new();
        for error in validator.iter_errors(value).take(3) {
            let _ = write!(wrong, "{error} (at {:?}); ", error.instance_path().to_string());
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

/// Records the replies that tests see, if requested.
fn see(name: &str, method: &str, template: Option<&str>, status: u16) {
    use std::io::Write as _;
    let (Ok(path), Some(template)) = (std::env::var(SEEN), template) else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let line = format!("{name} {method} {template} {status}\n");
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a line can be added");
}
