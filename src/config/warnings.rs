//! Warnings about settings that are valid, but probably not intended.

use super::keys::Config;

impl Config {
    /// Returns the warnings, one line each. `check` prints them, and a start logs them.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.ttl_second > 0 && self.ttl_second <= self.delay_second {
            let (ttl, delay) = (self.ttl_second, self.delay_second);
            warnings.push(format!(
                "TTLSecond = {ttl} is not longer than DelaySecond = {delay}: jobs published without ttl and delay \
                 expire a minute after they are due; set a longer TTLSecond"
            ));
        }
        warnings
    }
}
