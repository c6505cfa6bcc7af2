//! Reading schedules: a page of a namespace's, and those that are due, of all partitions. What is met on its way to another
//! partition is moved on by `schedules`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use tokio::time::timeout;

use super::super::core::{CompactCore, Lane, Place};
use super::super::partitions::Partition;
use super::schedules::read_landed;
use crate::clock::Millis;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::reply::read;
use crate::engine::redis::verbs::publish::unreadable;
use crate::engine::redis::verbs::schedules::{
    Due, LOOK, Row, args_of_due, bounds_of, id_of_member, read_due, read_row,
};
use crate::engine::{Cursor, DueList, DueSchedules, ScheduleId, ScheduleList, SchedulePage, together};
use crate::error::{Error, Result};
use crate::name::{Namespace, ScheduleName};

/// How long others wait for the look at a partition of a cluster.
const NODE: Duration = Duration::from_millis(250);
/// After which time a name without a schedule is dropped.
const CLAIMED: Millis = 60_000;
/// How often a list or a step is tried again that met a schedule on its way.
const TRIES: usize = 16;

impl CompactCore {
    /// Those of these schedules that are in this partition, and what time it is there.
    pub async fn read_schedules(
        &self,
        home: Partition,
        ids: &[ScheduleId],
        bodies: bool,
    ) -> Outcome<(Millis, Vec<Row>)> {
        let mut cmd = self.call(&self.scripts.read_schedules, home);
        cmd.arg(u8::from(bodies));
        ids.iter().for_each(|id| _ = cmd.arg(id.to_string()));
        let reply: Vec<Value> = self.ask(home, Lane::Other, &self.scripts.read_schedules, cmd).await?;
        let (now, rows) = reply.split_first().ok_or_else(unreadable)?;
        let landed = |bytes: &[u8]| read_landed(home, bytes);
        let rows: Outcome<Vec<Row>> = rows.iter().map(|row| read_row(row, id_of_member, landed)).collect();
        Ok((read::<u64>(now)? / 1000, rows?))
    }

    /// A page of a namespace's schedules.
    pub async fn list_schedules(
        self: &Arc<Self>,
        namespace: &Namespace,
        list: &ScheduleList,
    ) -> Result<SchedulePage> {
        for _ in 0..TRIES {
            if let Some(page) = self.try_list(namespace, list).await? {
                return Ok(page);
            }
        }
        Err(Error::Overloaded)
    }

    /// The same; `None` when one was on its way to another partition, where it is now.
    async fn try_list(
        self: &Arc<Self>,
        namespace: &Namespace,
        list: &ScheduleList,
    ) -> Result<Option<SchedulePage>> {
        let (from, to, limit, bodies) = bounds_of(list);
        let mut cmd = self.name_call(namespace, "page");
        cmd.arg(from).arg(to).arg(limit + 1);
        let sent = Instant::now();
        let reply: Vec<Value> = self.ask_names(namespace, cmd).await?;
        let (now, named) = reply.split_first().ok_or_else(unreadable)?;
        let now: u64 = read(now)?;
        self.learn(self.partitions.of_namespace(namespace), sent, now);
        let now = now / 1000;
        let mut by_home: BTreeMap<Partition, Vec<ScheduleId>> = BTreeMap::new();
        let mut marks: BTreeMap<ScheduleName, (Partition, String)> = BTreeMap::new();
        for of in named.chunks_exact(3).take(limit) {
            let name = ScheduleName::parse(&read::<String>(&of[0])?).ok_or_else(unreadable)?;
            let home: Partition = read::<String>(&of[1])?.parse().map_err(|_| unreadable())?;
            marks.insert(name.clone(), (home, read(&of[2])?));
            by_home.entry(home).or_default().push(ScheduleId { namespace: namespace.clone(), name });
        }
        let more = named.len() > 3 * limit;
        let last = marks.keys().next_back().cloned();
        let rows = together::try_all(by_home.into_iter().map(async |(home, ids)| {
            let mut found = Vec::new();
            // So many bodies at a time, whatever their size.
            for some in ids.chunks(if bodies { 16 } else { 100 }) {
                found.extend(self.read_schedules(home, some, bodies).await?.1);
            }
            Outcome::Ok((home, found))
        }));
        let mut schedules = Vec::new();
        let mut moves = false;
        for (home, rows) in rows.await? {
            for Row { stored, to } in rows {
                if to.is_some() {
                    self.finish_move(&stored.id, home).await?;
                    moves = true;
                }
                marks.remove(&stored.id.name);
                schedules.push(stored);
            }
        }
        if moves {
            return Ok(None);
        }
        for (name, read) in marks {
            let id = ScheduleId { namespace: namespace.clone(), name };
            if self.find_schedule(&id).await?.is_some_and(|found| found != read) {
                return Ok(None); // it has moved meanwhile
            }
            // Names that were claimed long ago, and whose schedules never came, or are gone.
            let (_, mark) = read;
            let claimed: Option<Millis> = mark.split(' ').next().and_then(|at| at.parse().ok());
            if claimed.is_none_or(|claimed| claimed + CLAIMED < now) {
                self.drop_name(&id, &mark, 0).await?;
            }
        }
        schedules.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        Ok(Some(SchedulePage { now, schedules, next: last.filter(|_| more) }))
    }

    /// The schedules that are due, of all partitions. Of a cluster those that cannot be used now are passed over: they are
    /// looked at again when they are back.
    pub async fn due_schedules(self: &Arc<Self>, list: DueList) -> Result<DueSchedules> {
        let mut all = DueSchedules { next: LOOK, ..DueSchedules::default() };
        if !self.has_schedules().await? {
            return Ok(DueSchedules { now: self.now(), ..all });
        }
        if let DueList::Ever { from, .. } = &list {
            return self.scan(&list, from.as_ref()).await;
        }
        let sent = Instant::now();
        let look = async |home| (home, self.due_in_time(home, &list).await);
        let (mut answered, mut failed) = (false, None);
        for (home, due) in together::all(self.partitions.all().map(look)).await {
            let Due { list: due, moving, .. } = match due {
                Ok(due) => due,
                Err(fault) => {
                    failed = Some(fault);
                    continue;
                }
            };
            answered = true;
            for id in moving {
                match self.finish_move(&id, home).await {
                    Ok(()) => all.next = Duration::ZERO,
                    // What it needs cannot be used now.
                    Err(error) => tracing::debug!(schedule = %id, %error, "it cannot move on yet"),
                }
            }
            (all.now, all.next) = (all.now.max(due.now), all.next.min(due.next));
            all.counts.iter_mut().zip(due.counts).for_each(|(all, of)| *all += of);
            due.by.into_iter().for_each(|(by, count)| *all.by.entry(by).or_default() += count);
            all.schedules.extend(due.schedules);
        }
        if let Some(fault) = failed.filter(|_| !answered) {
            return Err(fault.into());
        }
        // The first to answer said this a while ago, if others took long.
        all.next = all.next.saturating_sub(sent.elapsed());
        all.schedules.sort_by_cached_key(|of| (of.next.unwrap_or(Millis::MAX), of.id.clone()));
        if all.schedules.len() > list.limit() {
            all.schedules.truncate(list.limit());
            all.next = Duration::ZERO;
        }
        Ok(all)
    }

    /// A part of all, of one partition after the other. A cursor is a partition, and where the scan goes on there.
    async fn scan(&self, list: &DueList, from: Option<&Cursor>) -> Result<DueSchedules> {
        let mut left = self.partitions.all();
        let (home, at) = match from {
            None => (left.next().unwrap_or_default(), "0"),
            Some(Cursor(text)) => {
                let (home, at) = text.split_once('-').ok_or_else(unreadable)?;
                let home: Partition = home.parse().map_err(|_| unreadable())?;
                (left.find(|one| *one == home).ok_or_else(unreadable)?, at)
            }
        };
        let due = self.due_in(home, list, Some(at)).await?;
        let more = match due.scan {
            Some(at) => Some(format!("{home}-{at}")),
            None => left.next().map(|home| format!("{home}-0")),
        };
        Ok(DueSchedules { more: more.map(Cursor), ..due.list })
    }

    /// Those of a partition. In a cluster nobody waits for a node that does not answer.
    async fn due_in_time(&self, home: Partition, list: &DueList) -> Outcome<Due> {
        if let Place::One(_) = &self.place {
            return self.due_in(home, list, None).await;
        }
        self.try_link(home, Lane::Pump).map_err(Fault::part)?;
        let late = |_| Fault::away("no answer in time");
        timeout(NODE, self.due_in(home, list, None)).await.map_err(late)?
    }

    /// Those of a partition.
    async fn due_in(&self, home: Partition, list: &DueList, from: Option<&str>) -> Outcome<Due> {
        let mut cmd = self.call(&self.scripts.due_schedules, home);
        cmd.arg(&args_of_due(list, from));
        let sent = Instant::now();
        let reply: Vec<Value> = self.ask(home, Lane::Pump, &self.scripts.due_schedules, cmd).await?;
        let due = read_due(&reply, |bytes| read_landed(home, bytes))?;
        self.learn(home, sent, due.list.now * 1000);
        Ok(due)
    }
}
