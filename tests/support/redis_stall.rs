//! A suspended Redis, and its statistics in /proc.

use std::process::{Child, Command};

use super::redis_server::RedisServer;

impl RedisServer {
    /// Returns the process id, for files in /proc.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Suspends the server until the result is dropped. Its connections stay open.
    pub fn stall(&self) -> Stalled {
        let stalled = Stalled(self.pid());
        stalled.signal("STOP");
        stalled
    }
}

/// A suspended process.
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
