//! `token-cli`: the tool for tokens, see [`dormouse::cli::tokens`].

use std::process::ExitCode;

use clap::Parser;
use dormouse::cli::tokens::{TokenArgs, run};

fn main() -> ExitCode {
    run(&TokenArgs::parse())
}
