//! Which replicas of a Redis are in sync, according to Redis. Uses no connection.

use parking_lot::Mutex;

/// A replica silent for more than this many seconds is not in sync. Each reports its offset once a second.
const HEARD: u64 = 3;

/// The replicas of a Redis.
#[derive(Debug)]
pub struct Replicas {
    /// Number of replicas that must have a write.
    want: u16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of replicas in sync at the last check.
    in_step: u64,
    /// Set if the last wait was not satisfied: a replica below this offset is not in sync. The offset is Redis's own at
    /// the next check.
    short: Option<Option<u64>>,
}

impl Replicas {
    pub fn new(want: u16) -> Replicas {
        Replicas { want, state: Mutex::default() }
    }

    /// Returns the number of replicas to wait for.
    pub fn want(&self) -> u16 {
        self.want
    }

    /// Whether too few replicas are in sync.
    pub fn are_few(&self) -> bool {
        self.state.lock().in_step < self.want.into()
    }

    /// Updates the state from INFO, requested after (or before) a wait was not satisfied.
    pub fn learn(&self, info: &str, was_short: bool) {
        let mut state = self.state.lock();
        if state.short.is_some() && !was_short {
            return;
        }
        let field = |line: &str, name: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned);
        let own = info.lines().find_map(|line| field(line, "master_repl_offset")?.trim().parse().ok());
        if state.short == Some(None) {
            state.short = Some(own);
        }
        let least = state.short.flatten().unwrap_or(0);
        state.in_step = info.lines().filter(|line| is_in_step(line, least)).count() as u64;
        if state.short.is_some_and(|least| least.is_some()) && state.in_step >= self.want.into() {
            state.short = None;
        }
    }

    /// Whether the last wait was not satisfied, and no replica has caught up since.
    pub fn is_short(&self) -> bool {
        self.state.lock().short.is_some()
    }

    /// Records that too few replicas had the write in time.
    pub fn fell_short(&self) {
        *self.state.lock() = State { in_step: 0, short: Some(None) };
    }
}

/// `slave0:ip=127.0.0.1,port=7004,state=online,offset=1234,lag=0`
fn is_in_step(line: &str, least: u64) -> bool {
    let Some((name, fields)) = line.trim().split_once(':') else { return false };
    let is_replica = name.strip_prefix("slave").is_some_and(|n| n.parse::<u32>().is_ok());
    let field = |name: &str| {
        fields
            .split(',')
            .find_map(|field| field.split_once('=').filter(|(of, _)| *of == name))
            .map(|(_, is)| is)
    };
    let number = |name: &str| field(name).and_then(|is| is.parse::<u64>().ok());
    is_replica
        && field("state") == Some("online")
        && number("lag").is_some_and(|lag| lag <= HEARD)
        && number("offset").is_some_and(|offset| offset >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(offset: u64, replicas: &[(&str, u64, u64)]) -> String {
        let mut text = format!("# Replication\r\nrole:master\r\nconnected_slaves:{}\r\n", replicas.len());
        for (n, (state, offset, lag)) in replicas.iter().enumerate() {
            text += &format!("slave{n}:ip=10.0.0.{n},port=6379,state={state},offset={offset},lag={lag}\r\n");
        }
        text + &format!("master_failover_state:no-failover\r\nmaster_repl_offset:{offset}\r\n")
    }

    #[test]
    fn who_is_online_and_was_heard_of_is_in_step() {
        let replicas = Replicas::new(2);
        assert!(replicas.are_few(), "not read yet");
        for (of, few) in [
            (vec![("online", 90, 0), ("online", 80, 3)], false),
            (vec![("online", 90, 0), ("online", 80, 4)], true),
            (vec![("online", 90, 0), ("wait_bgsave", 80, 0)], true),
            (vec![("online", 90, 0)], true),
            (vec![("online", 90, 0), ("online", 80, 1), ("online", 0, 9)], false),
        ] {
            replicas.learn(&info(100, &of), false);
            assert_eq!(replicas.are_few(), few, "{of:?}");
        }
    }

    /// Guards against a hanging replica that counts as in sync because it reported a second ago, so that every call
    /// waits a second and fails.
    #[test]
    fn after_a_wait_fell_short_a_replica_is_in_step_once_it_has_caught_up() {
        let replicas = Replicas::new(1);
        replicas.learn(&info(100, &[("online", 100, 0)]), false);
        assert!(!replicas.are_few());
        replicas.fell_short();
        assert!(replicas.are_few());
        replicas.learn(&info(100, &[("online", 100, 0)]), false);
        assert!(replicas.are_few(), "that was asked before it fell short");
        replicas.learn(&info(150, &[("online", 100, 0)]), true);
        replicas.learn(&info(190, &[("online", 149, 0)]), true);
        assert!(replicas.are_few(), "it has less than the Redis had then");
        replicas.learn(&info(190, &[("online", 150, 1)]), true);
        assert!(!replicas.are_few(), "it has caught up");
    }
}
