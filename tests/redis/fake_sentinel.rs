//! A Sentinel whose replies and events a test controls.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

use parking_lot::Mutex;

/// The current replies.
#[derive(Clone, Debug)]
struct Says {
    master: String,
    epoch: u64,
}

/// A fake Sentinel. Monitors one master, under any name.
pub struct FakeSentinel {
    pub addr: SocketAddr,
    says: Arc<Mutex<Says>>,
    events: broadcast::Sender<(&'static str, String)>,
}

impl FakeSentinel {
    /// Starts a Sentinel that names this master, `host:port`. With `old` it does not support RESP3, so it sends no
    /// events.
    pub async fn start(master: &str, old: bool) -> FakeSentinel {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("its address");
        let says = Arc::new(Mutex::new(Says { master: master.to_owned(), epoch: 1 }));
        let (events, _) = broadcast::channel(16);
        let (state, tell) = (says.clone(), events.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, old, state.clone(), tell.subscribe()));
            }
        });
        FakeSentinel { addr, says, events }
    }

    /// Names another master from now on, with the next epoch.
    pub fn name(&self, master: &str) {
        let mut says = self.says.lock();
        *says = Says { master: master.to_owned(), epoch: says.epoch + 1 };
    }

    /// Sends an event to all subscribers.
    pub fn event(&self, channel: &'static str, text: &str) {
        self.events.send((channel, text.to_owned())).expect("somebody listens");
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Serves one client until it disconnects.
async fn serve(
    mut stream: TcpStream,
    old: bool,
    says: Arc<Mutex<Says>>,
    mut events: broadcast::Receiver<(&'static str, String)>,
) {
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read);
    loop {
        // Cancel-safe: `fill_buf` keeps the bytes of a partial request in the buffer.
        let answer = tokio::select! {
            more = read.fill_buf() => match more {
                Ok([]) | Err(_) => return,
                Ok(_) => {
                    let Some(request) = request(&mut read).await else { return };
                    answer(&request, old, &says.lock().clone())
                }
            },
            Ok((channel, text)) = events.recv() => {
                format!(">3\r\n{}{}{}", bulk("message"), bulk(channel), bulk(&text))
            }
        };
        if write.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads the words of a request.
async fn request(read: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Vec<String>> {
    let count = number(read).await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(read).await? + 2];
        read.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8(word).ok()?.trim_end().to_owned());
    }
    Some(words)
}

/// Reads the number in a line such as `*2` or `$7`.
async fn number(read: &mut (impl AsyncBufReadExt + Unpin)) -> Option<usize> {
    let mut line = String::new();
    read.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

fn answer(request: &[String], old: bool, says: &Says) -> String {
    let word = |n: usize| request.get(n).map(|word| word.to_uppercase()).unwrap_or_default();
    match (word(0).as_str(), word(1).as_str()) {
        ("HELLO", _) if old => "-ERR unknown command 'HELLO'\r\n".into(),
        ("HELLO", _) => format!("%1\r\n{}:3\r\n", bulk("proto")),
        ("CLIENT", _) => "+OK\r\n".into(),
        ("SUBSCRIBE", _) => request[1..]
            .iter()
            .zip(1..)
            .map(|(channel, n)| format!(">3\r\n{}{}:{n}\r\n", bulk("subscribe"), bulk(channel)))
            .collect(),
        ("SENTINEL", "MASTER") => {
            format!("*2\r\n{}{}", bulk("config-epoch"), bulk(&says.epoch.to_string()))
        }
        // Commands of other clients.
        ("ROLE", _) => format!("*2\r\n{}*1\r\n{}", bulk("sentinel"), bulk("dorm")),
        ("SENTINEL", "MASTERS") => {
            let (host, port) = says.master.rsplit_once(':').expect("host:port");
            let fields = [("name", "dorm"), ("ip", host), ("port", port), ("flags", "master")];
            let fields: String = fields.iter().map(|(name, value)| bulk(name) + &bulk(value)).collect();
            format!("*1\r\n*8\r\n{fields}")
        }
        ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => {
            let (host, port) = says.master.rsplit_once(':').expect("host:port");
            format!("*2\r\n{}{}", bulk(host), bulk(port))
        }
        _ => "-ERR unknown command\r\n".into(),
    }
}
