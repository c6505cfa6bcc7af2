//! Lists of jobs of a spread queue: one partition after the other, the home first, so that a list that began before the
//! queue was spread can continue. Changes nothing.

use super::Router;
use crate::engine::redis::cluster::map::Partition;
use crate::engine::{Cursor, JobList, JobPage};
use crate::error::Result;
use crate::job::JobState;
use crate::name::Queue;

/// Maximum partitions read per page.
const MOST_PARTS: usize = 16;

impl Router {
    /// Returns one page of a queue's jobs in one state. A cursor is `s`, the state, `.`, the partition's number, `-`,
    /// and the partition's own cursor.
    pub async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        let home = self.partitions.home(queue);
        let (at, inner) = match &list.cursor {
            None => (home, None),
            Some(Cursor(text)) => match self.read_cursor(text, list.state) {
                Some((partition, "")) => (partition, None),
                Some((partition, inner)) => (partition, Some(Cursor(inner.to_owned()))),
                // The list began before the queue was spread.
                None => (home, list.cursor.clone()),
            },
        };
        if at == home && !self.spreading.is_everywhere(queue) {
            return self.part(home).list_jobs(queue, JobList { cursor: inner, ..list }).await;
        }
        let parts: Vec<Partition> =
            [home].into_iter().chain(self.partitions.all().filter(|other| *other != home)).collect();
        let from = parts.iter().position(|partition| *partition == at).unwrap_or(0);
        let mut left = self.with_jobs(queue, list.state, &parts[from..]).await?;
        if inner.is_some() && left.first() != Some(&at) {
            left.insert(0, at);
        }
        let mut left = left.into_iter().peekable();
        let (mut page, mut inner, mut read) = (JobPage::default(), inner, 0);
        while let Some(partition) = left.next() {
            let limit = list.limit - page.jobs.len();
            let of = JobList { cursor: inner.take().filter(|_| partition == at), limit, ..list.clone() };
            let Some(of_part) = self.part(partition).list_jobs(queue, of).await? else { return Ok(None) };
            page.jobs.extend(of_part.jobs);
            page.scanned += of_part.scanned;
            read += 1;
            if let Some(Cursor(inner)) = of_part.cursor {
                page.cursor = Some(Cursor(format!("{}{partition}-{inner}", tag_of(list.state))));
                return Ok(Some(page));
            }
            if let Some(next) = left.peek()
                && (page.jobs.len() == list.limit || read == MOST_PARTS)
            {
                page.cursor = Some(Cursor(format!("{}{next}-", tag_of(list.state))));
                return Ok(Some(page));
            }
        }
        Ok(Some(page))
    }

    /// Returns the partitions that may have jobs of a queue in this state, in the order of `parts`.
    async fn with_jobs(&self, queue: &Queue, state: JobState, parts: &[Partition]) -> Result<Vec<Partition>> {
        let exists = self.read_each::<bool>(parts, true, |part| {
            redis::Cmd::exists(match state {
                JobState::Ready => vec![part.keys.ready(queue)],
                JobState::Dead => vec![part.keys.dead(queue)],
                JobState::Delayed => vec![part.keys.timer_set.clone(), part.keys.buckets.clone()],
                JobState::Running => vec![part.keys.timer_set.clone()],
            })
        });
        let mut with_jobs = Vec::new();
        for (partition, exists) in exists.await {
            if exists? {
                with_jobs.push(partition);
            }
        }
        with_jobs.sort_by_key(|partition| parts.iter().position(|other| other == partition));
        Ok(with_jobs)
    }

    fn read_cursor<'a>(&self, text: &'a str, state: JobState) -> Option<(Partition, &'a str)> {
        let (partition, inner) = text.strip_prefix(&*tag_of(state))?.split_once('-')?;
        let partition = partition.parse().ok()?;
        self.partitions.all().contains(&partition).then_some((partition, inner))
    }
}

/// Returns the prefix of a cursor for a state.
fn tag_of(state: JobState) -> String {
    format!("s{}.", JobState::ALL.iter().position(|other| *other == state).unwrap_or_default())
}
