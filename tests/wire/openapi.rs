//! The OpenAPI documents: they are served and complete, match the router's routes, and their examples work. held.rs
//! checks each reply in these tests against them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use dormouse::http::all_routes;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::support::client::{Response, request, send};
use crate::support::held::{ADMIN, Document, PUBLIC};
use crate::support::servers::TestServer;

const METHODS: [&str; 5] = ["delete", "get", "head", "post", "put"];

/// Returns each operation, with its path and method.
pub fn operations(document: &Document) -> impl Iterator<Item = (&str, &str, &Value)> {
    document.paths().iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("a path has methods");
        methods.iter().map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

#[tokio::test]
async fn each_port_serves_its_document_to_everybody() {
    let server = TestServer::on_disk().await;
    for (document, get, head) in [
        (&PUBLIC, server.api("GET", "/openapi.json", ""), server.api("HEAD", "/openapi.json", "")),
        (&ADMIN, server.admin("GET", "/openapi.json"), server.admin("HEAD", "/openapi.json")),
    ] {
        let got = send(get).await.expect(200);
        assert_eq!(got.json, document.json, "the document served by the {} port", document.name);
        let version = &got.json["info"]["version"];
        assert_eq!(version, env!("CARGO_PKG_VERSION"), "the version in the {} document", document.name);
        let head = send(head).await.expect(200);
        assert_eq!(head.text, "", "a HEAD has no body");
        assert_eq!(head.header("content-length"), got.text.len().to_string(), "it tells the length");
    }
}

/// Guards against operations without descriptions, bounds or examples, and against wrong examples.
#[test]
fn each_operation_is_whole() {
    for document in [&PUBLIC, &ADMIN] {
        let mut ids = BTreeSet::new();
        let mut examples = 0;
        for (path, method, operation) in operations(document) {
            let what = format!("{} {method} {path}", document.name);
            assert!(METHODS.contains(&method), "{what}: another method");
            assert!(operation["summary"].as_str().is_some_and(|text| text.len() > 5), "{what}: a summary");
            let id = operation["operationId"].as_str().expect("an operationId");
            assert!(ids.insert(id), "{what}: {id} is duplicated");
            let mut named = BTreeSet::new();
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let parameter = document.resolved(parameter);
                let name = parameter["name"].as_str().expect("a parameter has a name");
                assert!(parameter["description"].is_string(), "{what}: what {name} means");
                if parameter["in"] == "path" {
                    named.insert(format!("{{{name}}}"));
                    assert!(parameter["example"].is_string(), "{what}: an example of {name}");
                }
                if let Some(example) = parameter.get("example") {
                    let fits = document.fits(&format!("{what} {name}"), &parameter["schema"], example);
                    assert_eq!(fits, Ok(()), "{what}: the example of {name}");
                }
            }
            let in_path = path.split('/').filter(|part| part.starts_with('{')).map(str::to_owned);
            assert_eq!(named, in_path.collect(), "{what}: the parameters of its path");
            let answers = operation["responses"].as_object().expect("it has responses");
            assert!(answers.keys().any(|status| status.starts_with('2')), "{what}: a success");
            let answers =
                answers.iter().map(|(status, of)| (format!("{what} {status}"), document.resolved(of)));
            let body = [(format!("{what} body"), document.resolved(&operation["requestBody"]))];
            for (what, of) in answers.chain(body) {
                for (of_type, content) in of["content"].as_object().into_iter().flatten() {
                    let many = content["examples"].as_object().into_iter().flat_map(|all| all.values());
                    let all: Vec<&Value> =
                        content.get("example").into_iter().chain(many.map(|of| &of["value"])).collect();
                    assert!(!all.is_empty(), "{what}: an example");
                    for example in all {
                        let fits = document.fits(&format!("{what} {of_type}"), &content["schema"], example);
                        assert_eq!(fits, Ok(()), "{what}: its example {example}");
                        examples += 1;
                    }
                }
            }
        }
        assert!(examples > 200, "only {examples} examples were looked at");
    }
}

/// Guards against schemas that accept anything: wrong replies must be detected.
#[test]
fn a_wrong_answer_is_seen() {
    let size = |status: u16, text: &str| {
        let answer = axum::http::Response::builder()
            .status(status)
            .header("content-type", "application/json; charset=utf-8")
            .header("x-request-id", "r");
        let headers = answer.body(()).expect("a response").headers().clone();
        let json = serde_json::from_str(text).unwrap_or_default();
        PUBLIC.holds("GET", "/api/ns/q/size", &Response { status, headers, text: text.to_owned(), json })
    };
    assert_eq!(size(200, r#"{"namespace":"ns","queue":"q","size":3}"#), Ok(()), "it is right");
    for (what, status, text) in [
        ("a field that lacks", 200, r#"{"namespace":"ns","queue":"q"}"#),
        ("a field more", 200, r#"{"namespace":"ns","queue":"q","size":3,"more":1}"#),
        ("another type", 200, r#"{"namespace":"ns","queue":"q","size":"3"}"#),
        ("no JSON", 200, "3,"),
        ("another status", 201, r#"{"namespace":"ns","queue":"q","size":3}"#),
        ("no Retry-After", 503, r#"{"error":"the server is shutting down","request_id":"r"}"#),
    ] {
        assert!(size(status, text).is_err(), "{what} should be seen");
    }
    let none = Response { status: 200, headers: Default::default(), text: String::new(), json: Value::Null };
    assert!(PUBLIC.holds("PATCH", "/api/ns/q/size", &none).is_err(), "an operation that is not there");
    assert!(PUBLIC.holds("GET", "/api/ns/q/size", &none).is_err(), "a request id that is not there");
}

/// Returns the routes of a port's router as `method path`. The dashboard's pages are not documented.
fn routes(port: &str) -> BTreeSet<String> {
    let is_page = |pattern: &str| pattern == "/" || pattern == "/ui" || pattern.starts_with("/ui/");
    let own = all_routes().into_iter().filter(|route| route.port == port && !is_page(route.pattern));
    own.map(|route| format!("{} {}", route.method.to_ascii_lowercase(), route.pattern)).collect()
}

#[test]
fn the_router_and_the_documents_have_the_same_routes() {
    for (document, least) in [(&PUBLIC, 42), (&ADMIN, 71)] {
        let routed = routes(document.name);
        let told = operations(document).map(|(path, method, _)| format!("{method} {path}")).collect();
        let lacks: Vec<_> = routed.difference(&told).collect();
        let more: Vec<_> = told.difference(&routed).collect();
        assert!(lacks.is_empty(), "the {} document lacks {lacks:#?}", document.name);
        assert!(more.is_empty(), "the {} document has paths without a route: {more:#?}", document.name);
        assert!(routed.len() >= least, "only {} routes were found", routed.len());
    }
}

/// Objects that an example refers to.
pub struct Made {
    pub job_id: String,
    pub receipt: String,
    pub token: String,
    pub namespace: String,
}

/// Creates the objects needed by the operation: its own namespace, a job in the required state, a schedule, and so on.
pub async fn made(server: &TestServer, port: &str, name: &str, id: &str) -> Made {
    let namespace = format!("{port}-{name}");
    let token = server.token(&namespace).await;
    let api = |method: &str, path: &str| server.api(method, &format!("/api/{namespace}{path}"), &token);
    let delay = if id.starts_with("promote") { 60 } else { 0 };
    let place = format!("/mail/jobs?tries=3&key=ann&delay={delay}");
    let placed = send(api("POST", &place).body("good morning")).await.expect(201);
    let (job_id, mut receipt) = (placed.job_id(), "AAEAAAAAAAMAAg".to_owned());
    match id {
        "touch" | "release" | "bury" | "respawnJob" | "respawnJobs" => {
            let job = send(api("GET", "/mail?receipt=1")).await.expect(200);
            receipt = job.json["receipt"].as_str().expect("a receipt").to_owned();
            if id.starts_with("respawn") {
                let path = format!("/mail/job/{job_id}/bury?receipt={receipt}");
                send(api("POST", &path)).await.expect(200);
            }
        }
        "schedule" | "deleteSchedule" | "pauseSchedule" | "resumeSchedule" | "runSchedule" => {
            let body = json!({"queue": "mail", "cron": "30 2 * * MON-FRI", "zone": "Europe/Berlin", "text": "sales"});
            send(api("PUT", "/_schedules/nightly").body(body.to_string())).await.expect(201);
            if id == "resumeSchedule" {
                send(api("POST", "/_schedules/nightly/pause")).await.expect(200);
            }
        }
        "limit" => {
            let path = format!("/token/{namespace}/{token}/limit");
            send(server.admin("PUT", &path).body(r#"{"read":1,"write":1,"interval":60}"#)).await.expect(200);
        }
        "quota" => {
            send(server.admin("PUT", &format!("/quota/{namespace}")).body("{}")).await.expect(200);
        }
        "pushed" | "pausePush" | "resumePush" | "newSecret" | "testPush" => {
            let body = r#"{"url":"https://shop.example/jobs","timeout":3}"#;
            send(server.admin("PUT", &format!("/push/{namespace}/mail")).body(body)).await.expect(200);
        }
        _ => {}
    }
    Made { job_id, receipt, token, namespace }
}

/// The example request of an operation.
pub struct Example {
    pub method: String,
    /// Includes each parameter that has an example.
    pub path: String,
    /// With its content type.
    pub body: Option<(String, String)>,
}

impl Example {
    pub fn to(&self, port: SocketAddr, token: &str) -> RequestBuilder {
        let request = request(&self.method, &format!("http://{port}{}", self.path), token);
        match &self.body {
            Some((of_type, text)) => request.header("Content-Type", of_type).body(text.clone()),
            None => request,
        }
    }
}

pub fn example(document: &Document, (path, method, operation): (&str, &str, &Value), made: &Made) -> Example {
    let id = operation["operationId"].as_str().expect("an operationId");
    let mut url = path.to_owned();
    let mut query = form_urlencoded::Serializer::new(String::new());
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let parameter = document.resolved(parameter);
        let name = parameter["name"].as_str().expect("a parameter has a name");
        let example = match parameter.get("example") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => continue,
        };
        match (parameter["in"].as_str(), name) {
            (Some("path"), _) => {
                let value = match name {
                    "namespace" => &made.namespace,
                    "job_id" => &made.job_id,
                    "token" => &made.token,
                    _ => &example,
                };
                url = url.replace(&format!("{{{name}}}"), value);
            }
            (Some("query"), "receipt") if parameter["required"] == true => {
                query.append_pair(name, &made.receipt);
            }
            (Some("query"), "namespace") => drop(query.append_pair(name, &made.namespace)),
            (Some("query"), _) => drop(query.append_pair(name, &example)),
            (place, _) => panic!("{id}: {name} has an example, and is in {place:?}"),
        }
    }
    let query = query.finish();
    let path = if query.is_empty() { url } else { format!("{url}?{query}") };
    let body = document.resolved(&operation["requestBody"]);
    let content = body["content"].as_object().and_then(|content| content.iter().next());
    let body = content.map(|(of_type, content)| {
        let text = match (&**of_type, &content["example"]) {
            ("application/x-www-form-urlencoded", fields) => {
                let fields = fields.as_object().into_iter().flatten();
                let fields = fields.map(|(name, value)| (name, value.as_str().unwrap_or_default()));
                form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
            }
            (_, Value::String(text)) => text.clone(),
            (_, example) => example.to_string().replace("01M80D5J4VCPC2AJTPM8000000", &made.job_id),
        };
        (of_type.clone(), text)
    });
    Example { method: method.to_ascii_uppercase(), path, body }
}

/// Returns the field names of a reply, or of the first element of a list.
fn fields(of: &Value) -> BTreeSet<&str> {
    let of = of.get(0).unwrap_or(of);
    of.as_object().into_iter().flat_map(|of| of.keys().map(String::as_str)).collect()
}

/// Operations whose example gets another status here, with the reason.
const OTHERWISE: [(&str, u16); 4] = [
    ("cluster", 400),     // the pool is a directory
    ("bulkAction", 404),  // its id is made up
    ("stopBulk", 404),    // likewise
    ("revokeToken", 404), // its hash is
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_are_requests_that_work() {
    let server = TestServer::on_disk().await;
    let mut wrong = String::new();
    for document in [&PUBLIC, &ADMIN] {
        for asked in operations(document) {
            let (path, method, operation) = asked;
            let id = operation["operationId"].as_str().expect("an operationId");
            let made = made(&server, document.name, id, id).await;
            let (port, token) = match document.name {
                "public" => (server.api_addr, &*made.token),
                _ => (server.admin_addr, ""),
            };
            let response = send(example(document, asked, &made).to(port, token)).await;
            let otherwise = OTHERWISE.iter().find(|(of, _)| *of == id).map(|(_, status)| *status);
            let is_right = match otherwise {
                Some(status) => response.status == status,
                None => (200..300).contains(&response.status),
            };
            if !is_right {
                wrong += &format!("{} {method} {path}: {response:?}\n", document.name);
            }
            let answer = document.resolved(&operation["responses"][response.status.to_string()]);
            let content = &answer["content"]["application/json"];
            let many = content["examples"].as_object().into_iter().flat_map(|all| all.values());
            let examples: Vec<&Value> =
                content.get("example").into_iter().chain(many.map(|of| &of["value"])).collect();
            let same = |example: &&Value| {
                example.is_array() == response.json.is_array() && fields(example) == fields(&response.json)
            };
            let is_empty = response.json.as_array().is_some_and(Vec::is_empty);
            if !examples.is_empty()
                && method != "head"
                && id != "openapi"
                && !is_empty
                && !examples.iter().any(same)
            {
                wrong +=
                    &format!("{} {method} {path}: no example is like {}\n", document.name, response.text);
            }
        }
    }
    assert!(wrong.is_empty(), "examples of the documents do not work:\n{wrong}");
}
