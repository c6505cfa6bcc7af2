//! `GET /backup`: a pool on disk as a tar, while it serves. The store makes the copy; this module streams it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use hyper::body::Frame;
use tokio::sync::{mpsc, oneshot};

use crate::engine::backup::StoreCopy;
use crate::error::Error;
use crate::http::answer::error::{ApiError, HandlerResult};
use crate::http::answer::reply;
use crate::http::request::params::Query;
use crate::http::state::App;
use crate::process::tasks::beside_the_runtime;

const TAR: HeaderValue = HeaderValue::from_static("application/x-tar");
/// Size of a piece, and how many pieces may wait to be sent.
const PIECE: usize = 64 << 10;
const WAITING: usize = 4;

/// `GET /backup?pool`
pub async fn get(State(state): App, RawQuery(query): RawQuery) -> HandlerResult {
    let query = query.unwrap_or_default();
    let name = state.pools.name(&Query(&query).get("pool").unwrap_or_default())?;
    let Some((store, turn)) = state.operations.backups.get(&name) else {
        return Err(ApiError::detailed(
            StatusCode::BAD_REQUEST,
            format!("pool {name} is a Redis: back up that Redis, by its append-only file or snapshots"),
        ));
    };
    let Ok(turn) = turn.clone().try_lock_owned() else {
        return Err(ApiError::Refused(StatusCode::CONFLICT, "a backup of this pool is already running"));
    };
    let (begun, begins) = oneshot::channel();
    let (store, pool) = (store.clone(), name.to_string());
    // The turn lasts until the copy is removed, also if the client disconnects meanwhile.
    state.server.tasks.spawn(async move {
        match store.copy().await {
            Err(error) => drop(begun.send(Err(error))),
            Ok(copy) => {
                let (send, receive) = mpsc::channel(WAITING);
                let _ = begun.send(Ok(receive));
                beside_the_runtime(move || send_all(&pool, copy, send)).await;
            }
        }
        drop(turn);
    });
    let pieces = begins.await.map_err(|_| Error::Closed)??;
    Ok(reply::with_body(StatusCode::OK, TAR, Body::new(Pieces(pieces))))
}

/// Replies on a port that is reachable over the network and requires no password.
pub async fn refused() -> Response {
    let text = "a backup contains all jobs and tokens: configure [Accounts], or let the admin port listen on 127.0.0.1";
    reply::error(StatusCode::FORBIDDEN, text)
}

/// Sends the copy, and removes it.
fn send_all(pool: &str, copy: StoreCopy, send: mpsc::Sender<io::Result<Bytes>>) {
    let mut pipe = Pipe { send, piece: BytesMut::new(), sent: 0 };
    let done = archive(&copy, &mut pipe).and_then(|()| pipe.flush());
    drop(copy);
    match done {
        Ok(()) => tracing::info!(pool, bytes = pipe.sent, "a backup was sent"),
        Err(error) => {
            tracing::warn!(pool, bytes = pipe.sent, %error, "a backup was not sent completely");
            // The client sees that the stream was aborted.
            let _ = pipe.send.blocking_send(Err(error));
        }
    }
}

/// Writes a directory as a tar. The file that marks it complete comes last, so an aborted tar is not a valid pool.
fn archive(copy: &StoreCopy, to: impl Write) -> io::Result<()> {
    let mut tar = tar::Builder::new(to);
    let mut paths = Vec::new();
    walk(copy.dir(), Path::new(""), &mut paths)?;
    paths.sort_by_key(|path| path == Path::new(copy.mark));
    for path in paths {
        let from = copy.dir().join(&path);
        let mut header = tar::Header::new_gnu();
        header.set_metadata_in_mode(&from.metadata()?, tar::HeaderMode::Deterministic);
        header.set_mode(if from.is_dir() { 0o700 } else { 0o600 });
        match from.is_dir() {
            true => tar.append_data(&mut header, &path, io::empty())?,
            false => tar.append_data(&mut header, &path, File::open(&from)?)?,
        }
    }
    tar.finish()
}

/// Collects everything below `dir`, each directory before its entries.
fn walk(root: &Path, dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries: Vec<_> = std::fs::read_dir(root.join(dir))?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = dir.join(entry.file_name());
        found.push(path.clone());
        if entry.file_type()?.is_dir() {
            walk(root, &path, found)?;
        }
    }
    Ok(())
}

/// Cuts the output into pieces, and waits while they are not read.
struct Pipe {
    send: mpsc::Sender<io::Result<Bytes>>,
    piece: BytesMut,
    sent: u64,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = self.piece.split().freeze();
        self.sent += piece.len() as u64;
        // The client has disconnected.
        self.send.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The pieces as a response body.
struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
