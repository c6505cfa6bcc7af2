//! `token-cli`: the tool for tokens, see [`dormouse::cli::tokens`].

use std::process::ExitCode;

use dormouse::cli;
use dormouse::cli::tokens::{TokenArgs, run};

fn main() -> ExitCode {
    match cli::parse::<TokenArgs>("token-cli", std::env::args_os()) {
        Ok(args) => run(&args),
        Err(code) => code,
    }
}
