//! The one time-out of tests.

use std::time::Duration;

/// How long a test waits for what a healthy server does at once. Only a broken one lets it pass.
pub const TIMEOUT: Duration = Duration::from_secs(30);
