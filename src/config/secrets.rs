//! Secrets in files of their own.

use std::path::Path;

use super::keys::{Config, Secret};
use super::setting::{ConfigError, Given};
use super::source::{Section, Sources, both};

impl Config {
    /// Reads the secrets from the files named for them.
    pub(super) fn read_secrets(&mut self, sources: &Sources) -> Result<(), ConfigError> {
        fill(&mut self.push_proxy, &sources.top, "PushProxy", "PushProxyFile")?;
        let pools = self.pool.iter_mut().filter_map(|(name, pool)| Some((pool, sources.pools.get(name)?)));
        for (pool, section) in pools.chain(self.admin_redis.iter_mut().zip(&sources.admin_redis)) {
            fill(&mut pool.password, section, "Password", "PasswordFile")?;
            fill(&mut pool.sentinel_password, section, "SentinelPassword", "SentinelPasswordFile")?;
        }
        for (user, file) in &sources.accounts.files {
            self.accounts.insert(user.clone(), secret(file)?);
        }
        for (user, file) in &sources.read_only_accounts.files {
            self.read_only_accounts.insert(user.clone(), secret(file)?);
        }
        Ok(())
    }
}

/// Sets a secret from the file that `file_key` names, if any.
fn fill(to: &mut Option<Secret>, section: &Section, key: &str, file_key: &str) -> Result<(), ConfigError> {
    let given = |key| section.get(key).filter(|given: &&Given| !given.is_empty());
    match (given(key), given(file_key)) {
        (Some(secret), Some(file)) => Err(both(secret, file)),
        (_, Some(file)) => {
            *to = Some(secret(file)?);
            Ok(())
        }
        (_, None) => Ok(()),
    }
}

/// Reads a file without its final line break.
fn secret(file: &Given) -> Result<Secret, ConfigError> {
    let path = file.value.as_str().unwrap_or_default();
    let text = std::fs::read_to_string(Path::new(path))
        .map_err(|error| file.wrong(format!("the file cannot be read: {error}")))?;
    let text = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if text.is_empty() {
        return Err(file.wrong("the file is empty"));
    }
    Ok(text.to_owned().into())
}
