//! Lists that read pages as needed.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;

use crate::client::{self, Client, Page};
use crate::error::Result;
use crate::job::{JobInfo, QueueInfo, State};

/// The request of a page.
type Asked<T> = Pin<Box<dyn Future<Output = Result<Page<T>>> + Send>>;

struct Pages<T> {
    here: VecDeque<T>,
    cursor: Option<String>,
    asked: Option<Asked<T>>,
    ended: bool,
}

impl<T> Pages<T> {
    fn new() -> Pages<T> {
        Pages { here: VecDeque::new(), cursor: None, asked: None, ended: false }
    }

    /// An empty page does not end the list, only a missing cursor does.
    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        ask: impl Fn(Option<String>) -> Asked<T>,
    ) -> Poll<Option<Result<T>>> {
        loop {
            if let Some(next) = self.here.pop_front() {
                return Poll::Ready(Some(Ok(next)));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let asked = self.asked.get_or_insert_with(|| ask(self.cursor.clone()));
            let page = ready!(asked.as_mut().poll(cx));
            self.asked = None;
            match page {
                Ok((here, cursor)) => {
                    self.here = here.into();
                    self.ended = cursor.is_none();
                    self.cursor = cursor;
                }
                Err(e) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(e)));
                }
            }
        }
    }
}

/// The queues of a namespace: a [`Stream`].
pub struct Queues {
    client: Client,
    pages: Pages<QueueInfo>,
}

impl Queues {
    pub(crate) fn new(client: Client) -> Queues {
        Queues { client, pages: Pages::new() }
    }
}

impl Stream for Queues {
    type Item = Result<QueueInfo>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Queues { client, pages } = self.get_mut();
        pages.poll_next(cx, |cursor| Box::pin(client::queues(client.clone(), cursor)))
    }
}

/// The jobs of a queue in one state: a [`Stream`].
pub struct Jobs {
    client: Client,
    queue: String,
    state: State,
    data: bool,
    pages: Pages<JobInfo>,
}

impl Jobs {
    pub(crate) fn new(client: Client, queue: &str, state: State) -> Jobs {
        Jobs { client, queue: queue.to_owned(), state, data: false, pages: Pages::new() }
    }

    /// Includes bodies and attributes.
    pub fn data(mut self, data: bool) -> Jobs {
        self.data = data;
        self
    }
}

impl Stream for Jobs {
    type Item = Result<JobInfo>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Jobs { client, queue, state, data, pages } = self.get_mut();
        pages.poll_next(cx, |cursor| {
            Box::pin(client::jobs(client.clone(), queue.clone(), *state, *data, cursor))
        })
    }
}
