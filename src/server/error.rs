//! Errors of a server, for one line on the terminal.

use std::io;

/// Why a server did not start, or stopped. One line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("{0}: {1}")]
    Pool(String, String),
    #[error("cannot listen on {0}: {1}; set another port in the configuration or with {2}")]
    Bind(String, io::Error, &'static str),
    #[error("{0}")]
    Failed(String),
    /// A key of the configuration is invalid. Nothing was touched.
    #[error("{0}")]
    Configuration(String),
}
