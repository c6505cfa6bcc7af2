//! Checks whether directories of a configuration are usable. Creates nothing.

use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, access};

/// Returns why a directory cannot be used or created.
pub fn problem(path: &Path) -> Option<String> {
    let (there, is_it) = match nearest(path) {
        Ok(found) => found,
        Err(why) => return Some(why),
    };
    let rights = Access::WRITE_OK | Access::EXEC_OK;
    match access(&there, rights) {
        Ok(()) => None,
        Err(_) if is_it => Some("this user may not write there".into()),
        Err(error) => Some(format!("it cannot be created: {}: {error}", there.display())),
    }
}

/// Returns the directory or its nearest existing ancestor, and whether it is the directory itself.
fn nearest(path: &Path) -> Result<(PathBuf, bool), String> {
    let mut is_it = true;
    for above in path.ancestors() {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        match above.metadata() {
            Ok(found) if found.is_dir() => return Ok((above.to_owned(), is_it)),
            Ok(_) if is_it => return Err("it is a file, not a directory".into()),
            Ok(_) => return Err(format!("it cannot be created: {} is a file", above.display())),
            // A dangling link exists too.
            Err(_) if above.symlink_metadata().is_ok_and(|found| found.is_symlink()) => {
                return Err(format!("it cannot be created: {} is a dangling link", above.display()));
            }
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(format!("it cannot be accessed: {error}"));
            }
            Err(_) => is_it = false,
        }
    }
    Ok((PathBuf::from("."), false))
}

/// Returns a path that is equal for two names of one directory, even one that does not exist yet.
pub fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut all = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                all.pop();
            }
            other => all.push(other),
        }
        if let Ok(found) = all.canonicalize() {
            all = found;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_is_told_from_what_can_be_none() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "x").expect("a file");
        symlink("nowhere", at("link")).expect("a link");
        for (path, says) in [
            ("", None),
            ("new", None),
            ("new/deeper/still", None),
            ("file", Some("it is a file")),
            ("file/below", Some("file is a file")),
            ("file/below/it", Some("file is a file")),
            ("link", Some("dangling link")),
            ("link/below", Some("dangling link")),
        ] {
            let found = problem(&at(path));
            let fits = match (&found, says) {
                (Some(found), Some(says)) => found.contains(says),
                (found, says) => found.is_none() && says.is_none(),
            };
            assert!(fits, "{path:?}: {found:?}, not {says:?}");
        }
        assert_eq!(problem(Path::new("new")), None, "below the directory that we are in");
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 2, "nothing was made");
    }

    #[test]
    fn two_names_of_one_directory_are_equal() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(dir.path().join("there")).expect("a directory");
        symlink("there", dir.path().join("link")).expect("a link");
        for name in ["there/new", "link/new", "./there/../there/new", "there/new/."] {
            assert_eq!(resolved(&dir.path().join(name)), resolved(&dir.path().join("there/new")), "{name}");
        }
    }
}
