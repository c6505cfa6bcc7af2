//! The dashboard behind nginx: with a stripped prefix, a kept prefix, and https outside. curl sends a browser's
//! headers. The nginx configuration is the one in docs/dashboard.md.

use std::collections::{BTreeSet, VecDeque};
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::Url;
use tempfile::TempDir;

use crate::support::certificates::Authority;
use crate::support::client::{create_token, request, send};
use crate::support::nginx::Nginx;
use crate::support::process::Process;
use crate::support::redis_server::free_port;
use crate::support::wait::TIMEOUT;

/// Returns the nginx configurations of the dashboard's page: with the prefix stripped, and with the prefix kept.
fn blocks() -> [String; 2] {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/dashboard.md");
    let text = std::fs::read_to_string(path).expect("the page");
    let found: Vec<_> = text.lines().filter(|line| line.starts_with("location /dormouse")).collect();
    let [stripped, kept] = found[..] else { panic!("two blocks were expected, not {found:?}") };
    assert!(stripped.contains("7778/;") && kept.contains("7778;"), "one of each: {found:?}");
    [stripped, kept].map(str::to_owned)
}

/// Text of a page in place of data that was not read in time.
const INCOMPLETE: &str = "no response within a second";

/// A dashboard behind nginx.
struct Outside {
    /// As users type it, without a slash at the end.
    url: String,
    /// Whether browsers send the origin of a request, as they do over https and to loopback.
    is_told: bool,
    authority: Option<Authority>,
    admin: String,
    _nginx: Nginx,
    _server: Process,
    _dir: TempDir,
}

/// Origin of a request.
#[derive(Clone, Copy, PartialEq)]
enum Site {
    Own,
    Other,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Outside {
    /// Starts nginx with `location`. `admin_url`: whether the server knows its outer URL.
    async fn start(location: &str, host: &str, path: &str, https: bool, admin_url: bool) -> Outside {
        let (dir, port) = (TempDir::new().expect("a directory"), free_port());
        let admin = format!("127.0.0.1:{port}");
        let location = location.replace("127.0.0.1:7778", &admin);
        let of_nginx = TempDir::new().expect("a directory");
        let (certificate, key) = (of_nginx.path().join("c.pem"), of_nginx.path().join("c.key"));
        let authority = https.then(Authority::new);
        let tls = match &authority {
            Some(authority) => {
                authority.issue(&format!("DNS:{host}"), &certificate, &key);
                format!("ssl_certificate {}; ssl_certificate_key {};", certificate.display(), key.display())
            }
            None => String::new(),
        };
        let ssl = if https { " ssl" } else { "" };
        let nginx =
            Nginx::start(of_nginx, |addr| format!("server {{ listen {addr}{ssl}; {tls}\n{location}\n}}"))
                .unwrap_or_else(|why| panic!("{why}"));
        let scheme = if https { "https" } else { "http" };
        let url = format!("{scheme}://{host}:{}{path}", nginx.addr().port());
        let own = if admin_url { format!("AdminUrl = '{url}'\n") } else { String::new() };
        std::fs::write(dir.path().join("c.toml"), format!("{own}[Pool.default]\nPath = 'jobs'\n"))
            .expect("a file");
        let port = port.to_string();
        let mut server = Process::start(dir.path(), &["-c", "c.toml"], &[("DORMOUSE_ADMIN_PORT", &port)]);
        let token = create_token(&server.address("admin"), "shop").await;
        for queue in ["mail", "reports?delay=600"] {
            let put = format!("http://{}/api/shop/{queue}", server.address("api"));
            send(request("PUT", &put, &token).body("{\"a\":1}")).await.expect(201);
        }
        // The first scrape reads the store, so that lists of queues are current.
        send(request("GET", &format!("http://{admin}/metrics"), "")).await.expect(200);
        let is_told = https || host == "127.0.0.1";
        Outside { url, is_told, authority, admin, _nginx: nginx, _server: server, _dir: dir }
    }

    fn ask(&self, url: &str, more: &[&str]) -> Answer {
        let at = Url::parse(url).expect("an address");
        let port = at.port().expect("nginx listens on no usual port");
        let mut curl = Command::new("curl");
        curl.args(["-q", "-sS", "-i", "-m", "20", "--noproxy", "*", "-H", "Accept: text/html,*/*;q=0.8"]);
        curl.arg("--resolve").arg(format!("{}:{port}:127.0.0.1", at.host_str().expect("a host")));
        if let Some(authority) = &self.authority {
            curl.arg("--cacert").arg(authority.certificate());
        }
        let said = curl.args(more).arg(url).output().expect("curl runs");
        assert!(said.status.success(), "{url}: {}", String::from_utf8_lossy(&said.stderr));
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("an answer: {text}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Returns a browser's headers for a request of this kind.
    fn told(&self, from: Site, mode: &str, dest: &str) -> Vec<String> {
        let site = if from == Site::Own { "same-origin" } else { "cross-site" };
        let told = [("Site", site), ("Mode", mode), ("Dest", dest)];
        let told = told.iter().filter(|_| self.is_told);
        told.flat_map(|(name, value)| ["-H".to_owned(), format!("Sec-Fetch-{name}: {value}")]).collect()
    }

    /// Follows a link, or loads a resource of a page. Waits until the page is complete: on a busy machine its server may
    /// not read everything in time.
    fn get(&self, url: &str, from: Site, dest: &str) -> Answer {
        let mode = if ["document", "iframe"].contains(&dest) { "navigate" } else { "no-cors" };
        let told = self.told(from, mode, dest);
        let told: Vec<_> = told.iter().map(String::as_str).collect();
        let began = Instant::now();
        loop {
            let answer = self.ask(url, &told);
            if !answer.body.contains(INCOMPLETE) || began.elapsed() > TIMEOUT {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Submits a form of a page.
    fn post(&self, url: &str, from: Site, form: &str) -> Answer {
        let mut told = self.told(from, "navigate", "document");
        let origin = match from {
            Site::Own => Url::parse(&self.url).expect("an address").origin().ascii_serialization(),
            Site::Other => "https://evil.example".to_owned(),
        };
        told.extend(["-H".to_owned(), format!("Origin: {origin}"), "-d".to_owned(), form.to_owned()]);
        self.ask(url, &told.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Resolves a link on the page at `base`. It must be below the outer URL, with or without a stripped prefix.
    fn resolved(&self, base: &str, link: &str) -> String {
        let to = Url::parse(base).and_then(|base| base.join(link)).expect("a link").to_string();
        assert!(to.starts_with(&format!("{}/ui/", self.url)), "{link:?} of {base} leads out: {to}");
        to
    }

    /// Returns the target of a redirect.
    fn redirect(&self, base: &str, answer: &Answer) -> String {
        assert_eq!(answer.status, 303, "{base}: {} {}", answer.head, answer.body);
        let location = answer.head.lines().find_map(|line| line.strip_prefix("Location: "));
        let location = location.or(answer.head.lines().find_map(|line| line.strip_prefix("location: ")));
        self.resolved(base, location.unwrap_or_else(|| panic!("where to? {}", answer.head)))
    }

    /// Follows every link of every page, each page once. Returns their paths.
    fn crawl(&self) -> BTreeSet<String> {
        let start = format!("{}/ui/", self.url);
        let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from([(start, "document")]));
        while let Some((url, dest)) = next.pop_front() {
            let at = Url::parse(&url).expect("an address");
            // Only query parameters that make it a different page.
            let asks: Vec<_> = at.query_pairs().filter(|(name, _)| name == "ask").collect();
            if !seen.insert(format!("{}{asks:?}", at.path())) {
                continue;
            }
            let answer = self.get(&url, Site::Own, dest);
            assert_eq!(answer.status, 200, "{url}: {} {}", answer.head, answer.body);
            if !answer.head.to_ascii_lowercase().contains("content-type: text/html") {
                continue;
            }
            for (attribute, dest) in [("href", "document"), ("src", "script"), ("action", "form")] {
                for link in values(&answer.body, attribute).iter().filter(|link| !link.starts_with('#')) {
                    let to = self.resolved(&url, link);
                    if dest != "form" {
                        next.push_back((to, dest));
                    }
                }
            }
        }
        assert!(seen.len() < 200, "the test looks at the same page again: {seen:?}");
        seen
    }
}

/// Returns the values of an attribute in a page.
fn values(html: &str, attribute: &str) -> Vec<String> {
    let begin = format!(" {attribute}=\"");
    let found = html.split(&begin).skip(1).filter_map(|rest| rest.split('"').next());
    found.map(|value| value.replace("&amp;", "&")).collect()
}

async fn all_of_it_works(outside: Outside, knows_its_address: bool) {
    let at = |path: &str| format!("{}/ui/{path}", outside.url);
    // The root redirects to the pages.
    for root in [format!("{}/", outside.url), format!("{}/ui", outside.url)] {
        assert_eq!(outside.redirect(&root, &outside.get(&root, Site::Own, "document")), at(""));
    }
    let pages = tokio::task::block_in_place(|| outside.crawl());
    for page in [
        "/ui/[]",
        "/ui/queues[]",
        "/ui/dead[]",
        "/ui/schedules[]",
        "/ui/bulk[]",
        "/ui/server[]",
        "/ui/queues/default/shop/mail[]",
        "/ui/namespaces/default/shop[]",
        "/ui/tokens/default/shop[]",
        "/ui/publish/default/shop[]",
        "/ui/push/default/shop/mail[]",
        "/ui/queues/default/shop/mail[(\"ask\", \"destroy\")]",
    ] {
        assert!(pages.iter().any(|seen| seen.ends_with(page)), "{page} is one of {pages:?}");
    }
    for part in ["/ui/jobs/default/shop/mail/", ".css", ".js", ".svg"] {
        assert!(pages.iter().any(|seen| seen.contains(part)), "{part} is in one of {pages:?}");
    }

    // An action, and the page that it redirects to.
    let queue = at("queues/default/shop/mail?state=ready");
    for (form, says) in [("do=pause&for=600", "The queue is paused."), ("do=resume", "The queue is resumed.")]
    {
        let done = outside.redirect(&queue, &outside.post(&queue, Site::Own, form));
        let page = outside.get(&done, Site::Own, "document");
        assert!(page.status == 200 && page.body.contains(says), "{done}: {says}: {}", page.body);
    }
    let zone = outside.post(&at("zone"), Site::Own, "tz=Asia%2FTokyo&back=queues");
    assert_eq!(outside.redirect(&at("zone"), &zone), at("queues"));

    // Another site may link here, but do nothing else.
    let link = outside.get(&queue, Site::Other, "document");
    assert_eq!(link.status, 200, "a link in a chat: {}", link.body);
    let forged = outside.post(&queue, Site::Other, "do=pause");
    assert_eq!(forged.status, 403, "{}", forged.body);
    assert!(forged.body.contains("AdminUrl") && forged.body.contains("evil.example"), "{}", forged.body);
    for dest in ["iframe", "image", "script"].into_iter().filter(|_| outside.is_told) {
        assert_eq!(outside.get(&queue, Site::Other, dest).status, 403, "{dest}");
    }
    let all = send(request("GET", &format!("http://{}/api/shop", outside.admin), "")).await.expect(200);
    assert_eq!(all.json["queues"][0]["paused"], serde_json::json!(false), "nothing was done: {}", all.text);

    // The commands beside the forms use the outer address, if the server knows it.
    let page = outside.get(&queue, Site::Own, "document").body;
    let command = format!("curl -X POST '{}/api/shop/mail/pause", outside.url);
    assert_eq!(page.contains(&command), knows_its_address, "{command}: {page}");
    assert_eq!(outside.ask(&format!("{}/queues", outside.url), &[]).status, 200, "a command");
}

/// Guards against "Forbidden" if a proxy does not identify itself, and against links that omit its prefix.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_is_stripped_and_nothing_is_set() {
    // By default nginx sends the upstream's address as Host.
    let location = "location /dormouse/ { proxy_pass http://127.0.0.1:7778/; }";
    all_of_it_works(Outside::start(location, "127.0.0.1", "/dormouse", false, false).await, false).await;
}

/// Over plain HTTP beyond loopback, a browser sends only the origin of a form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_is_stripped_before_a_server_that_knows_its_address() {
    let [stripped, _] = blocks();
    all_of_it_works(Outside::start(&stripped, "ops.example", "/dormouse", false, true).await, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_is_kept() {
    let [_, kept] = blocks();
    let outside = Outside::start(&kept, "ops.example", "/dormouse", false, true).await;
    // Without a slash at the end, as users type it.
    let bare = outside.get(&outside.url, Site::Own, "document");
    assert_eq!(outside.redirect(&outside.url, &bare), format!("{}/ui/", outside.url));
    all_of_it_works(outside, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_outside_and_http_inside() {
    let [stripped, kept] = blocks();
    for location in [stripped, kept] {
        let outside = Outside::start(&location, "ops.example", "/dormouse", true, true).await;
        all_of_it_works(outside, true).await;
    }
}

/// A whole host in front of a server that does not know it: the browser says that a form is the page's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn https_outside_and_nothing_is_set() {
    let location = "location / { proxy_pass http://127.0.0.1:7778; }";
    all_of_it_works(Outside::start(location, "ops.example", "", true, false).await, false).await;
}
