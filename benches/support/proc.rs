//! Resource usage of a process, from /proc.

use std::time::Duration;

use super::Outcome;

/// One tick of the times in /proc/PID/stat: the kernel's USER_HZ, 100 on every Linux we know.
const TICK: Duration = Duration::from_millis(10);

/// Returns the processor time of the process, in user and kernel mode.
pub fn cpu(pid: u32) -> Outcome<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is a name that may contain spaces; the fields used here follow its parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| -> Outcome<u32> { Ok(fields.get(i).ok_or("a short stat")?.parse()?) };
    Ok(TICK * (ticks(11)? + ticks(12)?))
}

/// Returns the resident memory in KB, current and maximum.
pub fn memory(pid: u32) -> Outcome<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Outcome<f64> {
        let line = status.lines().find(|line| line.starts_with(name)).ok_or("a field is missing")?;
        Ok(line.split_whitespace().nth(1).ok_or("a field is empty")?.parse()?)
    };
    Ok((field("VmRSS:")?, field("VmHWM:")?))
}

/// Measures the processor time of processes over an interval.
#[derive(Debug)]
pub struct Meter {
    began: Vec<(&'static str, u32, Duration)>,
}

impl Meter {
    /// Starts the interval.
    pub fn start(processes: impl IntoIterator<Item = (&'static str, u32)>) -> Outcome<Meter> {
        let began = processes.into_iter().map(|(name, pid)| Ok((name, pid, cpu(pid)?)));
        Ok(Meter { began: began.collect::<Outcome<_>>()? })
    }

    /// Returns the time used by each since the start.
    pub fn used(&self) -> Outcome<Vec<(&'static str, Duration)>> {
        self.began.iter().map(|(name, pid, began)| Ok((*name, cpu(*pid)?.saturating_sub(*began)))).collect()
    }
}
