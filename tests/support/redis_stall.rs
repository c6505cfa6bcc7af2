//! A suspended Redis, and its statistics in /proc.

use std::process::{Child, Command};

use super::redis_server::RedisServer;

impl RedisServer {
    /// The process, for figures from /proc.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Suspends it until the result is dropped. Its connections stay.
    pub fn stall(&self) -> Stalled {
        let stalled = Stalled(self.pid());
        stalled.signal("STOP");
        stalled
    }
}

/// A process that does not run.
pub struct Stalled(u32);

impl Stalled {
    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.0.to_string()]).status();
        assert!(status.is_ok_and(|s| s.success()), "kill -{name} works");
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        self.signal("CONT");
    }
}
