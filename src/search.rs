//! Searches a queue's jobs by content. Each search is bounded in jobs, bytes and time; a cursor continues it.

use std::time::Duration;

use memchr::memmem;
use tokio::time::Instant;

use crate::engine::{Cursor, Engine, JobList, JobPage, MAX_LISTED};
use crate::error::Result;
use crate::job::JobView;
use crate::name::Queue;

/// Limits of one search: jobs, bytes of bodies, and time.
const MOST_JOBS: u64 = 10_000;
const MOST_BYTES: u64 = 32 << 20;
const MOST_TIME: Duration = Duration::from_millis(200);
/// Bytes of bodies in memory at a time, and of results kept, unless a single job is larger.
const PIECE: u64 = 4 << 20;
/// Maximum length of the text to search for, in bytes.
pub const LONGEST: usize = 1024;

/// Condition for jobs; empty matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Substring of the body, key, an attribute or the reason.
    pub contains: Option<String>,
    /// The complete reason. An empty string matches jobs without one.
    pub reason: Option<String>,
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    fn has_reason(&self, job: &JobView) -> bool {
        let reason = job.reason.as_ref().map_or("", |reason| reason.as_str());
        self.reason.as_deref().is_none_or(|wanted| reason == wanted)
    }

    /// Returns whether the job matches. Its body must be loaded if `contains` is set.
    pub fn finds(&self, job: &JobView) -> bool {
        let contains = |text: &str| {
            let finder = memmem::Finder::new(text);
            let part = |of: &[u8]| finder.find(of).is_some();
            job.reason.as_ref().is_some_and(|reason| part(reason.as_str().as_bytes()))
                || job.key.as_ref().is_some_and(|key| part(key.as_str().as_bytes()))
                || job.attributes.iter().any(|(name, value)| part(name.as_bytes()) || part(value.as_bytes()))
                || job.body.as_deref().is_some_and(part)
        };
        self.has_reason(job) && self.contains.as_deref().is_none_or(contains)
    }
}

/// Result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPage {
    pub jobs: Vec<JobView>,
    /// Cursor to continue from; `None` at the end of the queue.
    pub cursor: Option<Cursor>,
    pub looked_at: u64,
}

/// Searches part of a queue for up to `list.limit` matching jobs, with bodies if `list.bodies`. Returns `None` if the
/// cursor does not belong to this list.
pub async fn search(
    engine: &dyn Engine,
    queue: &Queue,
    filter: &Filter,
    list: JobList,
) -> Result<Option<SearchPage>> {
    let began = Instant::now();
    let mut found = SearchPage { cursor: list.cursor.clone(), ..SearchPage::default() };
    let (mut read, mut kept) = (0, 0);
    loop {
        let wanted = list.limit - found.jobs.len();
        let from = JobList { limit: MAX_LISTED, cursor: found.cursor.take(), ..list.clone() };
        let Some(page) = page_with(engine, queue, filter, from.clone(), wanted).await? else {
            return Ok(None);
        };
        read += page.jobs.iter().map(of_body).sum::<u64>();
        found.looked_at += page.scanned.max(page.jobs.len() as u64);
        for mut job in page.jobs.into_iter().filter(|job| filter.finds(job)) {
            if !list.bodies {
                job.body = None;
            }
            kept += of_body(&job);
            found.jobs.push(job);
        }
        found.cursor = page.cursor;
        let is_enough = found.jobs.len() >= list.limit || kept >= PIECE;
        let is_over = found.looked_at >= MOST_JOBS || read >= MOST_BYTES || began.elapsed() >= MOST_TIME;
        if found.cursor.is_none() || is_enough || is_over {
            return Ok(Some(found));
        }
    }
}

fn of_body(job: &JobView) -> u64 {
    job.body.as_ref().map_or(0, |body| body.len() as u64)
}

/// Returns a page with at most `wanted` matching jobs.
async fn page_with(
    engine: &dyn Engine,
    queue: &Queue,
    filter: &Filter,
    list: JobList,
    wanted: usize,
) -> Result<Option<JobPage>> {
    let Some(page) = page(engine, queue, filter, list.clone()).await? else { return Ok(None) };
    let mut found = page.jobs.iter().enumerate().filter(|(_, job)| filter.finds(job));
    let Some((beyond, _)) = found.nth(wanted) else { return Ok(Some(page)) };
    // A cursor is always at the end of a page, so the page is read again up to there.
    let shorter = JobList { limit: beyond.max(1), ..list.clone() };
    let Some(page) = self::page(engine, queue, filter, shorter).await? else { return Ok(None) };
    if page.jobs.iter().filter(|job| filter.finds(job)).count() <= wanted {
        return Ok(Some(page));
    }
    // Jobs have changed meanwhile. A page of `wanted` jobs cannot have more matches.
    self::page(engine, queue, filter, JobList { limit: wanted, ..list }).await
}

/// Returns a page with the fields that the filter needs. Its bodies have at most [`PIECE`] bytes, or it is a single
/// job.
pub async fn page(
    engine: &dyn Engine,
    queue: &Queue,
    filter: &Filter,
    list: JobList,
) -> Result<Option<JobPage>> {
    let bare = JobList { bodies: false, ..list.clone() };
    if filter.contains.is_none() && !list.bodies {
        return engine.list_jobs(queue, bare).await;
    }
    let Some(page) = engine.list_jobs(queue, bare).await? else { return Ok(None) };
    // Only jobs with the reason need their bodies checked.
    if !page.jobs.iter().any(|job| filter.has_reason(job)) {
        return Ok(Some(page));
    }
    let mut bytes = 0;
    let fit = page.jobs.iter().take_while(|job| {
        bytes += job.size;
        bytes <= PIECE
    });
    let limit = fit.count().max(1);
    engine.list_jobs(queue, JobList { limit, bodies: true, ..list }).await
}
