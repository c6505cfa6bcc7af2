//! `dormouse repair`: says what is damaged in a pool's directory, and on request gives that up, so that the rest is
//! served. For a directory that no server has open.

use std::path::Path;

use super::quarantine;
use super::rebuild::{rebuild, unreadable};
use crate::engine::disk::store::open::{self, OpenError};
use crate::engine::disk::store::repair::{self as files, RepairReport};
use crate::engine::disk::store::{Fatal, StoreLimits};

/// Judges the directory. Where its files are damaged it changes nothing but for `accept_loss`. Where they are not it opens
/// the database, as a server does, and looks at the lists and at the quarantine.
pub fn repair(path: &Path, accept_loss: bool) -> Result<RepairReport, OpenError> {
    let mut report = files::repair(path, accept_loss)?;
    if report.is_new || !report.opens() {
        return Ok(report);
    }
    let fatal = |Fatal(reason)| OpenError::Damaged(path.to_owned(), reason);
    let (store, mut mark) = open::open(path, StoreLimits::OF_A_TOOL)?;
    let lists = unreadable(&store);
    report.damage.extend(lists.iter().map(|list| format!("the list {list:?} cannot be read")));
    if accept_loss && !report.damage.is_empty() {
        let jobs = rebuild(&store, report.accepted).map_err(fatal)?;
        report.accepted = true;
        report.notes.push(format!("{jobs} jobs that stood in no list were put into one, with one try left"));
    } else if let Some(number) = mark.was_closed() {
        // Nothing was written, so it is still closed as it was.
        mark.close(number).map_err(|e| OpenError::Io(path.to_owned(), e))?;
    }
    for job in quarantine::list(&store).map_err(fatal)? {
        report
            .notes
            .push(format!("job {} of {} is in quarantine: {}", job.job.id, job.job.queue, job.reason));
    }
    Ok(report)
}
