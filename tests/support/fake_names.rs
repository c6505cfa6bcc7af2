//! Host names that a child process resolves as a test requires: to several addresses, or to different ones each time,
//! as an attacker's names may.

use super::shim::Shim;

/// The results of names, for one or several child processes.
pub struct FakeNames {
    shim: Shim,
    names: String,
}

impl FakeNames {
    /// Each name has a list of results, one per look-up in turn; a result is a list of addresses. Fails with the reason
    /// if this machine does not support it.
    pub fn new(names: &[(&str, &[&str])]) -> Result<FakeNames, String> {
        let shim = Shim::compile("tests/support/fake_names.c")?;
        assert!(names.len() <= 64, "fake_names.c knows 64 names at most");
        let names: Vec<String> =
            names.iter().map(|(name, answers)| format!("{name}={}", answers.join("/"))).collect();
        Ok(FakeNames { shim, names: names.join(" ") })
    }

    /// Returns the environment of the process.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![("LD_PRELOAD", self.shim.library().display().to_string()), ("NAMES", self.names.clone())]
    }
}
