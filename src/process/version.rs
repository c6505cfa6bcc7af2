//! The build of this binary, for `-v` and `GET /version`.

use serde::Serialize;

/// Version, commit and date of the build. The last two are from `DORMOUSE_BUILD_COMMIT` and `DORMOUSE_BUILD_DATE` at
/// compile time, or else from the clone; `unknown` if there is neither.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Build {
    pub build_commit: &'static str,
    pub build_date: &'static str,
    pub version: &'static str,
}

impl Build {
    /// Returns the build of this binary.
    pub const fn current() -> Build {
        const fn or_unknown(said: Option<&'static str>) -> &'static str {
            match said {
                Some(text) => text,
                None => "unknown",
            }
        }
        Build {
            build_commit: or_unknown(option_env!("DORMOUSE_BUILD_COMMIT")),
            build_date: or_unknown(option_env!("DORMOUSE_BUILD_DATE")),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}
