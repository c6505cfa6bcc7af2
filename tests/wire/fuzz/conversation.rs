//! Random conversations with an HTTP port, from a grammar that is mostly valid, so that handlers are reached, and from
//! damage to its output. Everything derives from a seed.

/// Random numbers (splitmix64). The same seed gives the same numbers, independently of the test.
#[derive(Debug)]
pub struct Random {
    state: u64,
    /// Whether this conversation is strictly valid HTTP; only its content may be odd. A connection ends with the first
    /// invalid request, so otherwise few requests would reach a handler.
    tidy: bool,
}

impl Random {
    /// Returns the generator for this seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed, tidy: false }
    }

    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true once in `times` calls on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Like `one_in`, for invalid syntax: never while conversations are tidy.
    fn breaks(&mut self, times: usize) -> bool {
        self.one_in(times) && !self.tidy
    }

    /// Returns one of these.
    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Existing objects that a conversation may name.
#[derive(Debug, Clone)]
pub struct Known {
    /// Valid for the namespace `ns`. No conversation deletes it or sets its limit.
    pub token: String,
    /// Also valid for `ns`; its limit may be set.
    pub limited: String,
    /// Ids of jobs in replies.
    pub ids: Vec<String>,
}

/// Port of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    Api,
    Admin,
}

/// How the client disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Shuts down its side, and reads to the end.
    Read,
    /// Closes after sending, and reads nothing.
    Close,
    /// Like `Close`, with a reset.
    Reset,
}

/// Bytes sent on one connection.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub port: Port,
    pub bytes: Vec<u8>,
    /// Number of requests in it.
    pub requests: usize,
    /// Where the bytes are sent in pieces; empty: all at once.
    pub pieces: Vec<usize>,
    pub leave: Leave,
    /// Whether it is valid HTTP, so that each request must get a response.
    pub tidy: bool,
}

impl Conversation {
    /// Returns the bytes as a literal, for a test that replays them.
    pub fn literal(&self) -> String {
        const MOST: usize = 100_000; // longer ones are large bodies of one byte
        let shown = &self.bytes[..self.bytes.len().min(MOST)];
        let more = self.bytes.len() - shown.len();
        let more = if more > 0 { format!(" /* and {more} bytes more */") } else { String::new() };
        format!("({:?}, b\"{}\"{more}), leaving by {:?}", self.port, shown.escape_ascii(), self.leave)
    }
}

/// Returns a random conversation.
pub fn conversation(random: &mut Random, known: &Known) -> Conversation {
    let port = if random.one_in(4) { Port::Admin } else { Port::Api };
    let count = if random.one_in(4) { 1 } else { 1 + random.below(16) };
    let leave = match random.below(20) {
        0 => Leave::Close,
        1 => Leave::Reset,
        _ => Leave::Read,
    };
    random.tidy = random.below(10) < 8;
    let (mut bytes, mut requests) = (Vec::new(), 0);
    while requests < count {
        let mut request = Request::random(random, known, port);
        requests += 1;
        // A long poll delays later requests of its connection, whose bytes hide that the client disconnects. So only
        // the last request waits for long, and only if the client disconnects.
        let last = requests == count;
        request.timeout(random, last && leave != Leave::Read);
        bytes.extend(request.bytes(random));
    }
    if random.breaks(2) {
        damage(random, &mut bytes);
    }
    if random.breaks(3) && !bytes.is_empty() {
        bytes.truncate(random.below(bytes.len()));
    }
    // Damage can turn a short poll into a long one, and the test should not wait for that.
    let leave = if leave == Leave::Read && waits_long(&bytes) { Leave::Close } else { leave };
    let mut pieces: Vec<usize> = Vec::new();
    if random.one_in(6) && bytes.len() > 1 {
        pieces = (0..1 + random.below(5)).map(|_| 1 + random.below(bytes.len() - 1)).collect();
        pieces.sort_unstable();
        pieces.dedup();
    }
    Conversation { port, bytes, requests, pieces, leave, tidy: random.tidy }
}

/// Whether some `timeout` in it exceeds a second.
fn waits_long(bytes: &[u8]) -> bool {
    const KEY: &[u8] = b"timeout=";
    bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY).any(|(at, _)| {
        let digits = bytes[at + KEY.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0u64, |sum, digit| sum.saturating_mul(10) + u64::from(digit - b'0')) > 1
    })
}

/// Changes, removes, inserts or repeats a few bytes.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => {
                bytes.remove(at);
            }
            3 => {
                let piece = random.pick::<[u8]>(&[
                    b"\r\n",
                    b"\r\n\r\n",
                    b"\n",
                    b"\r",
                    b"\0",
                    b" ",
                    b":",
                    b"%",
                    b"0\r\n\r\n",
                    b"\xff\xfe",
                    b"HTTP/1.1",
                ]);
                bytes.splice(at..at, piece.iter().copied());
            }
            _ => {
                let end = at + random.below((bytes.len() - at).min(200) + 1);
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
}

struct Request {
    method: String,
    path: Vec<u8>,
    query: Vec<(Vec<u8>, Vec<u8>)>,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    consumes: bool,
}

impl Request {
    fn random(random: &mut Random, known: &Known, port: Port) -> Request {
        let (method, mut path) = match port {
            Port::Api => api_path(random, known),
            Port::Admin => admin_path(random, known),
        };
        let method = match random.below(30) {
            0 => random
                .pick(&[
                    "GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "X", "get", "PRI",
                ])
                .to_owned(),
            1 if !random.tidy => String::from_utf8_lossy(&letters(random, 20)).into_owned(),
            _ => method.to_owned(),
        };
        if random.one_in(25) {
            encode(random, &mut path);
        }
        let mut request = Request {
            consumes: port == Port::Api && method == "GET",
            method,
            path,
            query: Vec::new(),
            headers: Vec::new(),
            body: body(random, port),
        };
        request.some_query(random, known, port);
        request.some_headers(random, known, port);
        // A queue that stays paused would no longer be useful.
        if request.path.ends_with(b"/pause") && !random.one_in(20) {
            request.query.insert(0, (b"for".to_vec(), b"0.05".to_vec()));
        }
        request
    }

    fn some_query(&mut self, random: &mut Random, known: &Known, port: Port) {
        let keys: &[&str] = match port {
            Port::Api => &[
                "delay",
                "ttl",
                "tries",
                "ttr",
                "count",
                "limit",
                "token",
                "x",
                "",
                "Delay",
                "at",
                "at_ms",
                "key",
                "on_conflict",
                "receipt",
                "weights",
                "spend",
                "state",
                "cursor",
                "data",
                "verbose",
                "for",
            ],
            Port::Admin => &["description", "pool", "token", "status", "force_update", "x"],
        };
        let pairs = if random.one_in(300) { 500 } else { random.below(4) };
        for _ in 0..pairs {
            let key = random.pick(keys);
            let value = match key {
                "ttr" | "delay" if !random.one_in(30) => number(random, 3),
                "ttl" if !random.one_in(10) => number(random, 20),
                "count" | "limit" | "tries" if !random.one_in(8) => number(random, 100),
                "receipt" | "spend" | "data" | "verbose" if !random.one_in(8) => {
                    random.pick(&["0", "1", "AAAAAAAAAAEAAA", "_____________w"]).into()
                }
                "at" | "at_ms" if !random.one_in(8) => random
                    .pick(&["0", "1795262400.5", "2026-11-21T12:00:00Z", "1969-12-31T23:59:60+23:59"])
                    .into(),
                "key" if !random.one_in(8) => self::key(random),
                "on_conflict" => random.pick(&["keep", "replace", "fail", "x"]).into(),
                "weights" => random.pick(&["1", "5,3", "1,1000,7,1", "0,1", ",", "65536"]).into(),
                "state" => random.pick(&["ready", "delayed", "running", "dead", "x"]).into(),
                "for" => random.pick(&["0.05", "0", "0.001", "x"]).into(),
                "status" => random.pick(&["enable", "disable", "x", ""]).into(),
                "description" if !random.one_in(10) => b"d".to_vec(),
                "pool" if !random.one_in(3) => b"default".to_vec(),
                "token" => chosen_token(random, known),
                _ => odd_value(random),
            };
            self.query.push((key.into(), value));
        }
        if port == Port::Admin && self.method == "POST" && !random.one_in(4) {
            self.query.insert(0, (b"description".to_vec(), b"d".to_vec()));
        }
    }

    /// Most consumes do not wait.
    fn timeout(&mut self, random: &mut Random, may_be_long: bool) {
        if self.consumes && random.one_in(6) {
            let seconds = match random.below(12) {
                0..3 if may_be_long => random.pick(&["3600", "4294967295", "60"]).into(),
                3 => odd_number(random),
                _ => number(random, 1),
            };
            // An invalid value must not be a long time: the first of a repeated key counts.
            let seconds = if may_be_long || !long(&seconds) { seconds } else { b"0".to_vec() };
            self.query.insert(0, (b"timeout".to_vec(), seconds));
        } else if self.consumes {
            self.query.insert(0, (b"timeout".to_vec(), b"0".to_vec()));
        }
    }

    fn some_headers(&mut self, random: &mut Random, known: &Known, port: Port) {
        let mut add =
            |name: &str, value: &[u8]| self.headers.push((name.as_bytes().to_vec(), value.to_vec()));
        if !random.one_in(20) {
            add("Host", random.pick(&["127.0.0.1", "localhost:7777", "x"]).as_bytes());
        }
        if port == Port::Api && !random.one_in(12) {
            match random.below(12) {
                0 => add("X-Token", known.limited.as_bytes()),
                1 => add("X-Token", format!("default:{}", known.token).as_bytes()),
                2 => add("X-Token", &odd_value(random)),
                _ => add("X-Token", known.token.as_bytes()),
            }
        }
        if random.one_in(6) {
            add("Enable-Job-Version", random.pick(&["YES", "yes", "no", ""]).as_bytes());
            let most = if random.one_in(10) { 40 } else { 4 };
            for n in 0..random.below(most) {
                add(&format!("Job-Attr-{}{n}", "a".repeat(random.below(40))), &header_value(random));
            }
        }
        if port == Port::Api && random.one_in(12) {
            let value = match random.below(4) {
                0 => header_value(random),
                _ => number(random, 50),
            };
            add("Idempotency-Key", &value);
        }
        for _ in 0..random.below(3) {
            let name = random.pick(&[
                "Content-Type",
                "Authorization",
                "Accept",
                "X-Request-ID",
                "Cookie",
                "Origin",
                "Sec-Fetch-Site",
                "Referer",
                "X-Forwarded-For",
                "Job-Attr-",
                "Upgrade",
                "Range",
                "X",
            ]);
            let value: Vec<u8> = if random.one_in(2) {
                random
                    .pick(&[
                        "application/x-www-form-urlencoded",
                        "application/json",
                        "Basic YTpi",
                        "Basic",
                        "basic !!!",
                        "http://evil.example",
                        "cross-site",
                        "same-origin",
                        "none",
                        "h2c",
                        "websocket",
                        "bytes=0-1",
                        "null",
                    ])
                    .into()
            } else {
                header_value(random)
            };
            add(name, &value);
        }
        if random.one_in(25) {
            let value = random.pick(&["close", "keep-alive", "keep-alive", "Upgrade", "x, close", "te", ""]);
            add("Connection", value.as_bytes());
        }
        if random.one_in(40) {
            add("Expect", random.pick(&["100-continue", "100-Continue", "x", "200-ok"]).as_bytes());
        }
        if random.breaks(60) {
            for n in 0..200 {
                add(&format!("H{n}"), b"v");
            }
        }
        if random.breaks(100) {
            add("Huge", &vec![b'h'; 1 + random.below(100_000)]);
        }
    }

    /// Encodes the request; its body length is sometimes wrong.
    fn bytes(self, random: &mut Random) -> Vec<u8> {
        let mut target = self.path;
        for (n, (key, value)) in self.query.iter().enumerate() {
            target.push(if n == 0 { b'?' } else { b'&' });
            target.extend(key);
            // A key without a value.
            if !(value.is_empty() && random.one_in(2)) {
                target.push(b'=');
                target.extend(value);
            }
        }
        let absolute = random.one_in(60);
        target = match if random.tidy { 3 } else { random.below(40) } {
            _ if absolute => [b"http://host.example:80".as_slice(), &target].concat(),
            1 => random.pick(&["*", "", "host:80", "//", "/%", "?", "/?", "http://", "/\u{e9}"]).into(),
            2 => [target.as_slice(), b"#fragment"].concat(),
            _ => target,
        };
        let version = match random.below(40) {
            // The connection ends after the response.
            0 => "HTTP/1.0",
            2 if !random.tidy => {
                random.pick(&["HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/1", "", "HTTP/1.1 "])
            }
            _ => "HTTP/1.1",
        };
        let end = if random.breaks(20) { random.pick(&["\n", "\r", "\r\r\n"]) } else { "\r\n" };
        let mut bytes = [self.method.as_bytes(), b" ", &target, b" ", version.as_bytes()].concat();
        bytes.extend(end.as_bytes());
        for (name, value) in &self.headers {
            bytes.extend(name);
            bytes.extend(
                if random.breaks(40) { " : " } else { random.pick(&[": ", ": ", ": ", ":", ":\t "]) }
                    .as_bytes(),
            );
            bytes.extend(value);
            bytes.extend(end.as_bytes());
        }
        let body = if random.one_in(5) { chunked(random, &self.body) } else { None };
        match body {
            Some(chunks) => {
                let coding = if random.breaks(8) {
                    random.pick(&["gzip, chunked", "identity", "chunked, chunked", "Chunked", "xchunked", ""])
                } else {
                    "chunked"
                };
                bytes.extend(format!("Transfer-Encoding: {coding}{end}").bytes());
                if random.breaks(20) {
                    bytes.extend(format!("Content-Length: {}{end}", self.body.len()).bytes());
                }
                bytes.extend(end.as_bytes());
                bytes.extend(chunks);
            }
            None if self.body.is_empty() && random.one_in(2) => bytes.extend(end.as_bytes()),
            None => {
                let length = match if random.tidy { 3 } else { random.below(20) } {
                    0 => (self.body.len() + 1 + random.below(50)).to_string(),
                    1 => (self.body.len() / 2).to_string(),
                    2 => random
                        .pick(&[
                            "",
                            "-1",
                            "+5",
                            "0x10",
                            "18446744073709551615",
                            "18446744073709551616",
                            "9999999999",
                            "1, 1",
                            "5 5",
                            "67108864",
                        ])
                        .to_owned(),
                    _ => self.body.len().to_string(),
                };
                bytes.extend(format!("Content-Length: {length}{end}").bytes());
                if random.breaks(30) {
                    bytes.extend(format!("Content-Length: {}{end}", random.below(500)).bytes());
                }
                bytes.extend(end.as_bytes());
                bytes.extend(&self.body);
            }
        }
        bytes
    }
}

/// Encodes a body in chunks, sometimes with an extension, a trailer or an error.
fn chunked(random: &mut Random, body: &[u8]) -> Option<Vec<u8>> {
    if body.len() > 100_000 && !random.one_in(4) {
        return None;
    }
    let mut chunks = Vec::new();
    for piece in body.chunks(1 + random.below(body.len().max(1))) {
        match random.below(if random.tidy { 400 } else { 40 }) {
            0 if !random.tidy => chunks
                .extend(random.pick(&["-1", "ffffffffffffffff", "10000000000000000", "g", "", " 5"]).bytes()),
            1 => chunks.extend(format!("{:x};name=\"value\"", piece.len()).bytes()),
            2 if !random.tidy => chunks.extend(format!("{:x}", piece.len() + 1 + random.below(9)).bytes()),
            3 => chunks.extend(format!("000000{:X}", piece.len()).bytes()),
            _ => chunks.extend(format!("{:x}", piece.len()).bytes()),
        }
        chunks.extend(b"\r\n");
        chunks.extend(piece);
        chunks.extend(if random.breaks(50) { b"" as &[u8] } else { b"\r\n" });
    }
    match random.below(20) {
        0 if !random.tidy => {}
        1 => chunks.extend(b"0\r\nX-Trailer: v\r\n\r\n"),
        2 if !random.tidy => chunks.extend(b"0\r\n"),
        _ => chunks.extend(b"0\r\n\r\n"),
    }
    Some(chunks)
}

fn api_path<'a>(random: &mut Random, known: &Known) -> (&'a str, Vec<u8>) {
    let (namespace, queue) = (namespace(random), queue(random));
    let id = job_id(random, known);
    let below = |rest: &[u8]| [b"/api/".as_slice(), &namespace, b"/", &queue, rest].concat();
    let job = |verb: &str| below(&[b"/job/".as_slice(), &id, b"/", verb.as_bytes()].concat());
    match random.below(64) {
        0..10 => ("PUT", below(b"")),
        10..19 => ("GET", [b"/api/", namespace.as_slice(), b"/", &queues(random, &queue)].concat()),
        19..22 => ("PUT", below(b"/bulk")),
        22..25 => ("DELETE", below(&[b"/job/".as_slice(), &id].concat())),
        25 => ("GET", below(&[b"/job/".as_slice(), &id].concat())),
        26 | 27 => ("PUT", below(&[b"/job/".as_slice(), &id].concat())),
        28 => ("GET", below(b"/peek")),
        29 => ("GET", below(b"/size")),
        30 => ("GET", below(b"/deadletter")),
        31 => ("GET", below(b"/deadletter/size")),
        32 => ("PUT", below(b"/deadletter")),
        33 | 34 => ("DELETE", below(b"/deadletter")),
        35 | 36 => ("DELETE", below(b"")),
        37 => ("GET", b"/ping".to_vec()),
        38..42 => ("POST", below(b"/jobs")),
        42..44 => ("POST", below(b"/jobs/batch")),
        44..46 => ("GET", below(b"/jobs")),
        46 => ("GET", [b"/api/".as_slice(), &namespace].concat()),
        47 => (random.pick(&["GET", "DELETE"]), below(&[b"/key/".as_slice(), &key(random)].concat())),
        48..52 => ("POST", below(b"/ack")),
        52..54 => ("POST", job("touch")),
        54..56 => ("POST", job("release")),
        56 => ("POST", job("bury")),
        57 => ("POST", job("respawn")),
        58 => ("POST", below(b"/deadletter/respawn")),
        59 => ("POST", below(b"/pause")),
        60 => ("POST", below(b"/resume")),
        _ => {
            let mut path = Vec::new();
            for _ in 0..random.below(7) {
                path.push(b'/');
                path.extend(match random.below(3) {
                    0 => random
                        .pick(&["api", "ns", "q1", "job", "bulk", "jobs", "key", "peek", "..", ".", "token"])
                        .into(),
                    1 => odd_value(random),
                    _ => id.clone(),
                });
            }
            (random.pick(&["GET", "PUT", "DELETE"]), if path.is_empty() { b"/".to_vec() } else { path })
        }
    }
}

fn admin_path<'a>(random: &mut Random, known: &Known) -> (&'a str, Vec<u8>) {
    let namespace = namespace(random);
    // The valid token is not named here, so it is neither deleted nor limited.
    let token = match random.below(4) {
        0 => known.limited.clone().into_bytes(),
        1 => format!("default:{}", known.limited).into_bytes(),
        2 => format!("01FUZZFUZZFUZZFUZZFUZZ{:02}", random.below(30)).into_bytes(),
        _ => odd_value(random),
    };
    let tokens = [b"/token/".as_slice(), &namespace].concat();
    let one = [tokens.as_slice(), b"/", &token].concat();
    let limit = [one.as_slice(), b"/limit"].concat();
    match random.below(40) {
        0..4 => ("POST", tokens),
        4..7 => ("GET", tokens),
        7..10 => (
            "DELETE",
            [tokens.as_slice(), format!("/01FUZZFUZZFUZZFUZZFUZZ{:02}", random.below(30)).as_bytes()]
                .concat(),
        ),
        10..13 => ("POST", limit),
        13..17 => ("PUT", limit),
        17..20 => ("GET", limit),
        20..24 => ("DELETE", limit),
        24 | 25 => ("GET", b"/limits".to_vec()),
        26 => ("GET", b"/pools".to_vec()),
        27 => ("GET", b"/info".to_vec()),
        28 => ("GET", b"/version".to_vec()),
        // A scrape is expensive, since it contains the labels of many queues.
        29 if random.one_in(20) => ("GET", b"/metrics".to_vec()),
        30 => ("GET", b"/ready".to_vec()),
        31 => ("GET", b"/accesslog".to_vec()),
        32 => ("POST", b"/accesslog".to_vec()),
        33 => ("DELETE", one),
        34 | 35 => api_path(random, known),
        _ => ("GET", b"/ping".to_vec()),
    }
}

fn namespace(random: &mut Random) -> Vec<u8> {
    match random.below(25) {
        0 => name(random),
        1 => odd_value(random),
        2 => b"other".to_vec(),
        _ => b"ns".to_vec(),
    }
}

fn queue(random: &mut Random) -> Vec<u8> {
    match random.below(30) {
        0 => name(random),
        1 => odd_value(random),
        2 => b"_hidden".to_vec(),
        _ => format!("q{}", random.below(12)).into_bytes(),
    }
}

/// Returns the queues of a consume: one, some, or far too many.
fn queues(random: &mut Random, first: &[u8]) -> Vec<u8> {
    let many = match random.below(400) {
        0 => 101 + random.below(200),
        1 if random.one_in(5) => 15_000,
        n => n % 4,
    };
    let mut list = first.to_vec();
    for n in 0..many {
        list.push(b',');
        list.extend(if many > 100 { format!("q{}", n % 120).into_bytes() } else { queue(random) });
    }
    list
}

/// Returns a name of letters, sometimes a too long one.
fn name(random: &mut Random) -> Vec<u8> {
    let most = if random.one_in(20) { 300 } else { 3 };
    letters(random, most)
}

fn letters(random: &mut Random, most: usize) -> Vec<u8> {
    let length = 1 + random.below(most);
    (0..length).map(|_| b"abcdefgh-_01"[random.below(12)]).collect()
}

fn job_id(random: &mut Random, known: &Known) -> Vec<u8> {
    match random.below(8) {
        0 => b"01ARZ3NDEKTSV4RRFFQ69G5FAV".to_vec(),
        1 => b"101ARZ3NDEKTSV4RRFFQ69G5FAV".to_vec(),
        2 => odd_value(random),
        _ if known.ids.is_empty() => b"01ARZ3NDEKTSV4RRFFQ69G5FAV".to_vec(),
        _ => known.ids[random.below(known.ids.len())].clone().into_bytes(),
    }
}

/// Returns a token chosen by a client, or sent with a request.
fn chosen_token(random: &mut Random, known: &Known) -> Vec<u8> {
    match random.below(6) {
        0 => known.limited.clone().into_bytes(),
        1 => format!("default:01FUZZFUZZFUZZFUZZFUZZ{:02}", random.below(30)).into_bytes(),
        2 => odd_value(random),
        3 => b":".to_vec(),
        _ => format!("01FUZZFUZZFUZZFUZZFUZZ{:02}", random.below(30)).into_bytes(),
    }
}

/// Returns a job key, mostly one of a few, so that keys are held.
fn key(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => odd_value(random),
        1 => b"order:1%2F2".to_vec(),
        _ => format!("k{}", random.below(5)).into_bytes(),
    }
}

/// Returns JSON for a route, valid or nearly so.
fn verb_body(random: &mut Random) -> Vec<u8> {
    let one = |random: &mut Random| {
        random
            .pick(&[
                r#"{"text":"x"}"#,
                r#"{"data":"eA==","tries":2,"ttl":5}"#,
                r#"{"text":"x","delay":0.25,"key":"k1","on_conflict":"replace","ttl":9}"#,
                r#"{"text":"\ud83d\ude00","at":"2026-11-21T12:00:00+02:00","attributes":{"A":"b"}}"#,
                r#"{"text":"x","at":1e400}"#,
                r#"{"data":"=","key":""}"#,
                r#""01ARZ3NDEKTSV4RRFFQ69G5FAV""#,
                r#"{"id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","receipt":"AAAAAAAAAAEAAA"}"#,
                r#"{"id":"x","receipt":null}"#,
                "null",
                "[[[[",
            ])
            .to_owned()
    };
    let most = if random.one_in(20) { 150 } else { 5 };
    let count = random.below(most);
    let all: Vec<String> = (0..count).map(|_| one(random)).collect();
    let all = all.join(",");
    if random.one_in(2) { format!("[{all}]") } else { format!("{{\"jobs\":[{all}]}}") }.into_bytes()
}

fn number(random: &mut Random, most: usize) -> Vec<u8> {
    random.below(most + 1).to_string().into_bytes()
}

fn odd_number(random: &mut Random) -> Vec<u8> {
    random
        .pick(&[
            "65535",
            "65536",
            "4294967295",
            "4294967296",
            "18446744073709551616",
            "99999999999999999999999999999999999999",
            "-1",
            "+1",
            "1.0",
            "1e3",
            "0x1",
            "00000000000000000000001",
            "",
            "%31",
            "%201",
            "%d9%a1",
        ])
        .into()
}

/// Whether this may be parsed as more than a second.
fn long(seconds: &[u8]) -> bool {
    !matches!(seconds, b"0" | b"1" | b"00000000000000000000001" | b"%31")
}

/// Returns an unexpected value of a query or path.
fn odd_value(random: &mut Random) -> Vec<u8> {
    match random.below(9) {
        0 => odd_number(random),
        1 => Vec::new(),
        2 => random
            .pick(&[
                "%",
                "%z",
                "%zz",
                "%00",
                "%2f",
                "%2F..%2f",
                "%252f",
                "%ff%fe",
                "%u1234",
                "..",
                "+",
                "%0d%0aX:%20y",
            ])
            .into(),
        3 => random.bytes(12).iter().flat_map(|byte| format!("%{byte:02x}").into_bytes()).collect(),
        4 if !random.tidy => {
            random.bytes(6).into_iter().filter(|byte| *byte > b' ' && *byte != 127).collect()
        }
        5 if random.one_in(20) => {
            let length = random.below(if random.tidy { 5_000 } else { 70_000 });
            vec![b'a'; length]
        }
        6 if !random.tidy => "é\u{1f600}".into(),
        6 => b"%c3%a9%f0%9f%98%80".to_vec(),
        _ => letters(random, 8),
    }
}

fn header_value(random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => random.bytes(40).into_iter().filter(|byte| *byte >= b' ' && *byte != 127).collect(),
        1 if !random.tidy => random.bytes(8),
        2 => Vec::new(),
        _ => letters(random, 200),
    }
}

/// Percent-encodes some characters of a path, once or twice.
fn encode(random: &mut Random, path: &mut Vec<u8>) {
    let mut encoded = Vec::new();
    for byte in path.drain(..) {
        match random.below(12) {
            0 => encoded.extend(format!("%{byte:02x}").bytes()),
            1 if random.one_in(6) => encoded.extend(format!("%25{byte:02X}").bytes()),
            _ => encoded.push(byte),
        }
    }
    *path = encoded;
}

fn body(random: &mut Random, port: Port) -> Vec<u8> {
    if port == Port::Admin {
        let number = |random: &mut Random| -> String {
            random
                .pick(&[
                    "1",
                    "0",
                    "-1",
                    "9223372036854775807",
                    "-9223372036854775808",
                    "1e9",
                    "null",
                    "\"1\"",
                    "100000",
                ])
                .to_owned()
        };
        return match random.below(6) {
            0 => Vec::new(),
            1 => b"description=a&token=b&pool=c".to_vec(),
            2 => random.bytes(100),
            _ => format!(
                "{{\"read\":{},\"write\":{},\"interval\":{}}}",
                number(random),
                number(random),
                number(random)
            )
            .into_bytes(),
        };
    }
    match random.below(400) {
        0 => vec![b'b'; random.below(1 << 20)],
        1 => vec![b'b'; (1 << 20) + random.below(3) - 1],
        2 => vec![b'['; random.below(100_000)],
        3 => vec![0xff; random.below(65_536)],
        4..40 => Vec::new(),
        40..120 => verb_body(random),
        120..200 => {
            let jobs = if random.one_in(12) { random.below(70) } else { random.below(4) };
            let jobs: Vec<&str> = (0..jobs)
                .map(|_| {
                    random.pick(&["1", "\"a\"", "{\"k\": [1, 2]}", "null", "{\"\\ud800\":1e999}", " 2 "])
                })
                .collect();
            format!("[{}]", jobs.join(",")).into_bytes()
        }
        _ => random.bytes(200),
    }
}
