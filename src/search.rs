//! Looks for jobs of a queue by what is in them. What one search reads is bounded in jobs, bytes and time; a cursor says
//! where the next one goes on. Asks a store, and knows no HTTP.

use std::time::Duration;

use memchr::memmem;
use tokio::time::Instant;

use crate::engine::{Cursor, Engine, JobList, JobPage, MAX_LISTED};
use crate::error::Result;
use crate::job::JobView;
use crate::name::Queue;

/// One search ends after so many jobs, so many bytes of bodies, or so much time.
const MOST_JOBS: u64 = 10_000;
const MOST_BYTES: u64 = 32 << 20;
const MOST_TIME: Duration = Duration::from_millis(200);
/// So many bytes of bodies are in memory at a time, and so many are kept of what was found, if no job is larger.
const PIECE: u64 = 4 << 20;
/// The longest text that is looked for, in bytes.
pub const LONGEST: usize = 1024;

/// Which jobs. Empty: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// A part of the body, the key, an attribute or the reason.
    pub contains: Option<String>,
    /// The whole reason. Empty: those without one.
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

    /// Whether it finds this job, which has its body if `contains` is asked for.
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

/// What a search found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPage {
    pub jobs: Vec<JobView>,
    /// Where to go on; `None` at the end of the queue.
    pub cursor: Option<Cursor>,
    pub looked_at: u64,
}

/// Looks through a part of a queue's jobs for those that the filter finds: up to `list.limit`. With `list.bodies` they
/// have their bodies. `None` when the cursor is not one of this list.
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

/// A page in which the filter finds no more than so many jobs.
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
    // A cursor stands behind a page, never within: the page is read again up to there.
    let shorter = JobList { limit: beyond.max(1), ..list.clone() };
    let Some(page) = self::page(engine, queue, filter, shorter).await? else { return Ok(None) };
    if page.jobs.iter().filter(|job| filter.finds(job)).count() <= wanted {
        return Ok(Some(page));
    }
    // Jobs have come and gone meanwhile. In as many as are wanted there are no more.
    self::page(engine, queue, filter, JobList { limit: wanted, ..list }).await
}

/// A page of jobs with all that the filter looks at. Its bodies take [`PIECE`] bytes at most, or it is one job.
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
    // Only jobs with the reason need to be looked into.
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
