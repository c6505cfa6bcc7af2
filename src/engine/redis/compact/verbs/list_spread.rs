//! Lists of jobs over partitions: of a queue that is spread one partition after the other, its home first, so that a list
//! which began while the queue was gathered goes on. Changes nothing.

use super::super::core::CompactCore;
use super::super::partitions::Partition;
use super::queues::Figures;
use crate::engine::{Cursor, JobList, JobPage};
use crate::error::Result;
use crate::job::JobState;
use crate::name::Queue;

/// How many partitions with jobs one page reads.
const MOST_PARTS: usize = 16;

impl CompactCore {
    /// A part of a queue's jobs in one state. A cursor is that of a partition behind `s`, its number and `-`.
    pub async fn list_jobs(&self, queue: &Queue, list: JobList) -> Result<Option<JobPage>> {
        let home = self.partition_of(queue);
        let (at, inner) = match &list.cursor {
            None => (home, None),
            Some(Cursor(text)) => match self.read_cursor(text) {
                Some((partition, "")) => (partition, None),
                Some((partition, inner)) => (partition, Some(Cursor(inner.to_owned()))),
                // One of a queue that was gathered.
                None => (home, list.cursor.clone()),
            },
        };
        if at == home && self.is_spread(queue).await?.is_none() {
            return self.list_in(home, queue, JobList { cursor: inner, ..list }).await;
        }
        let parts: Vec<Partition> =
            [home].into_iter().chain(self.partitions.all().filter(|other| *other != home)).collect();
        let count = in_state(list.state);
        let with_jobs: Vec<Partition> = self
            .figures_of(queue, &parts)
            .await?
            .into_iter()
            .filter(|(_, figures)| count(figures) > 0)
            .map(|(partition, _)| partition)
            .collect();
        let from = parts.iter().position(|partition| *partition == at).unwrap_or(0);
        let goes_on = inner.is_some();
        let mut left = Vec::new();
        for partition in &parts[from..] {
            if (*partition == at && goes_on) || with_jobs.contains(partition) {
                left.push(*partition);
            }
        }
        let mut left = left.into_iter().peekable();
        let (mut page, mut inner, mut read) = (JobPage::default(), inner, 0);
        while let Some(partition) = left.next() {
            let limit = list.limit - page.jobs.len();
            let of = JobList { cursor: inner.take().filter(|_| partition == at), limit, ..list.clone() };
            let Some(of_part) = self.list_in(partition, queue, of).await? else { return Ok(None) };
            page.jobs.extend(of_part.jobs);
            page.scanned += of_part.scanned;
            read += 1;
            if let Some(Cursor(inner)) = of_part.cursor {
                page.cursor = Some(Cursor(format!("s{partition}-{inner}")));
                return Ok(Some(page));
            }
            if let Some(next) = left.peek()
                && (page.jobs.len() == list.limit || read == MOST_PARTS)
            {
                page.cursor = Some(Cursor(format!("s{next}-")));
                return Ok(Some(page));
            }
        }
        Ok(Some(page))
    }

    fn read_cursor<'a>(&self, text: &'a str) -> Option<(Partition, &'a str)> {
        let (partition, inner) = text.strip_prefix('s')?.split_once('-')?;
        let partition = partition.parse().ok()?;
        self.partitions.all().contains(&partition).then_some((partition, inner))
    }
}

fn in_state(state: JobState) -> fn(&Figures) -> u64 {
    match state {
        JobState::Ready => Figures::ready,
        JobState::Delayed => |figures| figures.delayed,
        JobState::Running => |figures| figures.running,
        JobState::Dead => |figures| figures.dead,
    }
}
