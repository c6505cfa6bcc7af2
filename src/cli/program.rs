//! What every command needs beside HTTP: how it fails and which exit code says so, its options from the environment,
//! standard input and output. Knows no command.

use std::io::{IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// Why a command was not done, in one line.
pub enum CommandError {
    /// An argument is missing or wrong.
    Usage(String),
    /// The server refused or could not be reached, or not all was done.
    NotDone(String),
}

pub type Result<T> = std::result::Result<T, CommandError>;

/// Says why a command of `program` was not done.
pub fn exit_code(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandError::Usage(what)) => {
            eprintln!("{program}: {what}");
            ExitCode::from(2)
        }
        Err(CommandError::NotDone(why)) => {
            eprintln!("{program}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// An option, or else a variable of the environment. What is empty is not given.
pub fn given(option: Option<String>, variable: &str) -> Result<Option<String>> {
    let value = match option {
        Some(value) => value,
        None => match std::env::var(variable) {
            Ok(value) => value,
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(CommandError::Usage(format!("{variable} is not UTF-8")));
            }
        },
    };
    Ok(Some(value).filter(|value| !value.is_empty()))
}

/// Where the admin port is: as the command line says it, or the variable.
pub fn admin_url(said: Option<String>) -> Result<String> {
    // The second is the name that the variable had before.
    let url = match given(said, "DORMOUSE_ADMIN")? {
        Some(url) => Some(url),
        None => given(None, "DORMOUSE_ADMIN_URL")?,
    };
    Ok(url.unwrap_or_else(|| "http://127.0.0.1:7778".to_owned()))
}

pub fn standard_input() -> Result<Vec<u8>> {
    let mut input = std::io::stdin();
    if input.is_terminal() {
        eprintln!("dormouse: reading the body from the terminal; end it with Ctrl-D");
    }
    let mut body = Vec::new();
    input.read_to_end(&mut body).map_err(|e| CommandError::NotDone(format!("standard input: {e}")))?;
    Ok(body)
}

pub fn given_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| CommandError::Usage(format!("{}: {e}", path.display())))
}

/// Prints a text with one line end; prints nothing if the text is empty. It is no error if nobody reads it.
pub fn print_line(text: &str) {
    let text = text.trim_end();
    if !text.is_empty() {
        let _gone = writeln!(std::io::stdout(), "{text}");
    }
}
