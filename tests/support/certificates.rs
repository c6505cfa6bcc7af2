//! Certificates made for a test by `openssl`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A certificate authority that no system trusts.
#[derive(Debug)]
pub struct Authority {
    dir: TempDir,
}

impl Authority {
    /// Creates an authority.
    pub fn new() -> Authority {
        let authority = Authority { dir: TempDir::new().expect("a temporary directory") };
        let (key, certificate) = (authority.file("ca.key"), authority.certificate());
        let what =
            ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"];
        request(&key, &certificate, "an authority for one test", &what);
        authority
    }

    /// Returns the path of its certificate, to be trusted by clients.
    pub fn certificate(&self) -> PathBuf {
        self.file("ca.pem")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a key and a certificate signed by it for `names` (`DNS:localhost,IP:127.0.0.1`) to these files.
    pub fn issue(&self, names: &str, certificate: &Path, key: &Path) {
        let (by, by_key) = (self.certificate(), self.file("ca.key"));
        let (by, by_key) = (by.display().to_string(), by_key.display().to_string());
        let names = format!("subjectAltName={names}");
        let what = [
            "-CA",
            &by,
            "-CAkey",
            &by_key,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
            "-addext",
            &names,
        ];
        request(key, certificate, "a server for one test", &what);
    }
}

/// Creates a key and a certificate valid for two days.
fn request(key: &Path, certificate: &Path, name: &str, more: &[&str]) {
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]);
    openssl
        .arg("-subj")
        .arg(format!("/CN={name}"))
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(certificate)
        .args(more);
    let ended =
        openssl.output().unwrap_or_else(|e| panic!("openssl ({e}): run tests/run, which installs it"));
    assert!(ended.status.success(), "openssl: {}", String::from_utf8_lossy(&ended.stderr));
}
