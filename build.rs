//! Which commit a build is of, for `--version` and `GET /version`: from DORMOUSE_BUILD_COMMIT and DORMOUSE_BUILD_DATE,
//! or else from the clone that it is built in.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for (variable, args) in [
        ("DORMOUSE_BUILD_COMMIT", &["rev-parse", "--short=12", "HEAD"][..]),
        ("DORMOUSE_BUILD_DATE", &["log", "-1", "--format=%cI"]),
    ] {
        println!("cargo::rerun-if-env-changed={variable}");
        let given = std::env::var(variable).ok().filter(|value| !value.is_empty());
        if let Some(value) = given.or_else(|| git(args)) {
            println!("cargo::rustc-env={variable}={value}");
        }
    }
    // Debug builds are not repeated for each commit: theirs is the one that they were first built of.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release")
        && let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
    {
        println!("cargo::rerun-if-changed={log}");
    }
}

/// What git prints, if this is a clone and git is there.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
