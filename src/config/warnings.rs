//! Settings with which a server starts, and which are probably not what their author wants.

use super::keys::Config;

impl Config {
    /// One line for each. `check` prints them, and a start logs them.
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
