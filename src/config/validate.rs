//! Whether a server can start with a configuration. Each error is one line that says what to change. Checks only
//! the configuration itself, no file and no store.

use std::path::Path;

use super::keys::{Config, ConfigError, PoolConfig};
use crate::name::PoolName;

impl Config {
    /// The first thing that is wrong.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let err = |line: String| Err(ConfigError(line));
        for (key, host) in [("Host", &self.host), ("AdminHost", &self.admin_host)] {
            if host.is_empty() {
                return err(format!("{key} is empty: name the address to listen on, such as \"0.0.0.0\""));
            }
        }
        for (key, most) in [
            ("MaxConnections", self.max_connections),
            ("MaxParkedPolls", self.max_parked_polls),
            ("MaxBodyMemory", self.max_body_memory),
        ] {
            if most == 0 {
                return err(format!("{key} is 0: the server could serve nobody"));
            }
        }
        for (user, password) in &self.accounts {
            if user.is_empty() || password.reveal().is_empty() {
                return err(format!(
                    "[Accounts]: the user {user:?} needs a name and a password, neither empty"
                ));
            }
        }
        if self.tries_num == 0 {
            return err("TriesNum is 0: a job needs at least one try".into());
        }
        if self.ttl_second > 0 && self.ttl_second < self.delay_second {
            return err(
                "TTLSecond is shorter than DelaySecond: such jobs would end before they are due".into()
            );
        }
        let Some(default) = self.pool.get("default") else {
            return err(
                "there is no [Pool.default]: add one with Addr = \"host:port\" or Path = \"directory\""
                    .into(),
            );
        };
        let mut paths: Vec<&Path> = Vec::new();
        for (name, pool) in &self.pool {
            if PoolName::parse(name).is_err() {
                return err(format!("[Pool.{name}]: a pool's name is letters, digits, - and _"));
            }
            pool.validate(&format!("[Pool.{name}]"))?;
            if let Some(path) = &pool.path {
                if paths.contains(&path.as_path()) {
                    return err(format!("[Pool.{name}]: another pool uses Path {} already", path.display()));
                }
                paths.push(path);
            }
            if let Some(to) = &pool.migrate_to {
                match self.pool.get(to) {
                    None => return err(format!("[Pool.{name}]: MigrateTo names {to:?}, which is no pool")),
                    Some(_) if to == name => {
                        return err(format!("[Pool.{name}]: MigrateTo names the pool itself"));
                    }
                    Some(next) if next.migrate_to.is_some() => {
                        return err(format!(
                            "[Pool.{name}]: MigrateTo names {to:?}, which migrates itself; name the last pool"
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        match &self.admin_redis {
            Some(admin) if admin.path.is_some() => err("[AdminRedis]: Path belongs to pools; leave [AdminRedis] out, and tokens live in the default pool's directory".into()),
            Some(admin) => admin.validate("[AdminRedis]"),
            None if default.path.is_none() => err("there is no [AdminRedis]: tokens need a place, so add one with Addr = \"host:port\"".into()),
            None => Ok(()),
        }
    }
}

impl PoolConfig {
    fn validate(&self, section: &str) -> Result<(), ConfigError> {
        let err = |line: &str| Err(ConfigError(format!("{section}: {line}")));
        match (&self.addr, &self.path) {
            (Some(_), Some(_)) => return err("both Addr and Path are set: a pool is a Redis or a directory"),
            (None, None) => return err("neither Addr (a Redis) nor Path (a directory) is set"),
            (Some(addr), None) if addr.split(',').any(|a| a.trim().is_empty()) => {
                return err("Addr is empty: write host:port");
            }
            // The error would show a password.
            (Some(addr), None) if addr.contains(['@', '/']) => {
                return err("Addr should be host:port: a password has a key of its own, Password");
            }
            (Some(addr), None) if addr.contains(',') && self.master_name.is_none() => {
                return err(
                    "Addr lists several Sentinels, but MasterName does not say which master they watch",
                );
            }
            (None, Some(path)) if path.as_os_str().is_empty() => return err("Path is empty"),
            _ => {}
        }
        if self.db < 0 {
            return err("DB is negative");
        }
        if self.disk_timeout == 0 {
            return err("DiskTimeout is 0: every disk would have failed");
        }
        Ok(())
    }
}
