//! `token-cli`, lmstfy's tool for tokens: `dormouse` under another name. This program replaces itself with the `dormouse`
//! in its own directory and links nothing of the library, since linking it twice would take a third of a build. A
//! symbolic link named `token-cli` to `dormouse` does the same.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let failed = match std::env::current_exe() {
        Ok(own) => {
            let dormouse = own.with_file_name("dormouse");
            let error = Command::new(&dormouse).arg0("token-cli").args(std::env::args_os().skip(1)).exec();
            format!("{}: {error}", dormouse.display())
        }
        Err(error) => format!("no path to this program: {error}"),
    };
    // If standard error is closed there is nowhere left to report it.
    let _ = writeln!(std::io::stderr(), "token-cli: {failed}; it needs dormouse in its own directory");
    ExitCode::FAILURE
}
