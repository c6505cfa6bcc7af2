//! Common parts of all commands besides HTTP: errors and exit codes, options from the environment, standard input and
//! output. Knows no command.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// Why a command failed, in one line.
pub enum CommandError {
    /// An argument is missing or wrong.
    Usage(String),
    /// The server refused or could not be reached, or only a part was done.
    NotDone(String),
}

pub type Result<T> = std::result::Result<T, CommandError>;

/// Reports why a command of `program` failed, and returns its exit code.
pub fn exit_code(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandError::Usage(what)) => fail(program, 2, &what),
        Err(CommandError::NotDone(why)) => fail(program, 1, &why),
    }
}

/// Writes an error to standard error, and returns the exit code.
pub fn fail(program: &str, code: u8, error: &dyn std::fmt::Display) -> ExitCode {
    complain(&format!("{program}: {error}"));
    ExitCode::from(code)
}

/// Writes a line to standard error. If that fails there is nowhere left to report it.
pub fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Parses a command line. On an error, and for `--help`, prints what clap says and returns the exit code.
pub fn parse<T: clap::Parser>(
    program: &str,
    args: impl IntoIterator<Item = OsString>,
) -> std::result::Result<T, ExitCode> {
    T::try_parse_from(args).map_err(|error| {
        let text = error.render().to_string();
        if error.use_stderr() {
            // What is wrong with a value is one line, as with values that are checked later. Others show the usage.
            let one_line = error.kind() == clap::error::ErrorKind::ValueValidation;
            let text = if one_line { text.lines().next().unwrap_or_default() } else { text.trim_end() };
            complain(text);
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
        exit_code(program, print(&text))
    })
}

/// Returns an option, or else a variable of the environment. Empty values count as absent.
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

/// Returns the URL of the admin port, from the command line or the environment.
pub fn admin_url(said: Option<String>) -> Result<String> {
    // The second is the variable's previous name.
    let url = match given(said, "DORMOUSE_ADMIN")? {
        Some(url) => Some(url),
        None => given(None, "DORMOUSE_ADMIN_URL")?,
    };
    Ok(url.unwrap_or_else(|| "http://127.0.0.1:7778".to_owned()))
}

pub fn standard_input() -> Result<Vec<u8>> {
    let mut input = io::stdin();
    if input.is_terminal() {
        complain("dormouse: reading the body from the terminal; end it with Ctrl-D");
    }
    let mut body = Vec::new();
    input.read_to_end(&mut body).map_err(|e| CommandError::NotDone(format!("standard input: {e}")))?;
    Ok(body)
}

pub fn given_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| CommandError::Usage(format!("{}: {e}", path.display())))
}

/// Prints a text with one line end; prints nothing if the text is empty.
pub fn print_line(text: &str) -> Result<()> {
    let text = text.trim_end();
    if text.is_empty() { Ok(()) } else { print(&format!("{text}\n")) }
}

/// Writes `text` to standard output. A reader that closes the pipe has read enough, which is no error.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CommandError::NotDone(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
