//! Verifies that a push request is from a server with the secret.

use std::fmt;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac_sha256::HMAC;

/// Tolerated difference between the sender's clock and ours.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Why a request was rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SignatureError {
    /// A header is missing or empty.
    Missing,
    /// The timestamp is invalid, or more than five minutes off.
    Timestamp,
    /// No signature matches a secret.
    Signature,
    /// A secret is invalid, or none is given.
    Secret,
}

impl SignatureError {
    /// Returns the error as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            SignatureError::Missing => "missing",
            SignatureError::Timestamp => "timestamp",
            SignatureError::Signature => "signature",
            SignatureError::Secret => "secret",
        }
    }
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SignatureError::Missing => "missing: one of webhook-id, webhook-timestamp, webhook-signature",
            SignatureError::Timestamp => "timestamp: it is no time, or more than five minutes away",
            SignatureError::Signature => "signature: none is by one of the secrets",
            SignatureError::Secret => "secret: it should be whsec_ and 24 to 64 bytes in base64",
        })
    }
}

impl std::error::Error for SignatureError {}

/// Verifies a push request: its headers as received, in any case, and the raw body. During a change of the secret,
/// pass both.
///
/// ```
/// # use dormouse_client::{SignatureError, verify};
/// let headers = [("webhook-id", "1")];
/// let secrets = ["whsec_bm90IGEgc2VjcmV0LCBidXQgYXMgbG9uZw=="];
/// assert_eq!(verify(secrets, headers, b"hello"), Err(SignatureError::Missing));
/// ```
pub fn verify<'a>(
    secrets: impl IntoIterator<Item = impl AsRef<str>>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: &[u8],
) -> Result<(), SignatureError> {
    verify_at(secrets, headers, body, SystemTime::now())
}

/// Like [`verify`] at another time, for tests.
pub fn verify_at<'a>(
    secrets: impl IntoIterator<Item = impl AsRef<str>>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: &[u8],
    now: SystemTime,
) -> Result<(), SignatureError> {
    let keys: Vec<Vec<u8>> =
        secrets.into_iter().map(|secret| key(secret.as_ref())).collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(SignatureError::Secret);
    }
    let (mut id, mut timestamp, mut signatures) = (None, None, None);
    for (name, value) in headers {
        match name.to_ascii_lowercase().as_str() {
            "webhook-id" => id = Some(value),
            "webhook-timestamp" => timestamp = Some(value),
            "webhook-signature" => signatures = Some(value),
            _ => {}
        }
    }
    let there = |header: Option<&'a str>| header.filter(|value| !value.is_empty());
    let (Some(id), Some(timestamp), Some(signatures)) = (there(id), there(timestamp), there(signatures))
    else {
        return Err(SignatureError::Missing);
    };
    if !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SignatureError::Timestamp);
    }
    let at = Duration::from_secs(timestamp.parse().map_err(|_| SignatureError::Timestamp)?);
    let now = now.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| SignatureError::Timestamp)?;
    if now.abs_diff(at) > TOLERANCE {
        return Err(SignatureError::Timestamp);
    }
    let given: Vec<[u8; 32]> = signatures
        .split_ascii_whitespace()
        .filter_map(|signature| signature.strip_prefix("v1,"))
        .filter_map(|signature| STANDARD.decode(signature).ok()?.try_into().ok())
        .collect();
    let good = keys.iter().any(|key| {
        given.iter().any(|given| {
            let mut mac = HMAC::new(key);
            mac.update(id.as_bytes());
            mac.update(b".");
            mac.update(timestamp.as_bytes());
            mac.update(b".");
            mac.update(body);
            // In constant time.
            mac.finalize_verify(given)
        })
    });
    if good { Ok(()) } else { Err(SignatureError::Signature) }
}

fn key(secret: &str) -> Result<Vec<u8>, SignatureError> {
    let text = secret.strip_prefix("whsec_").unwrap_or(secret);
    let key = STANDARD.decode(text).map_err(|_| SignatureError::Secret)?;
    // As in Standard Webhooks; the server's secrets have 32.
    if (24..=64).contains(&key.len()) { Ok(key) } else { Err(SignatureError::Secret) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    /// The example of the Standard Webhooks specification.
    #[test]
    fn the_example_of_the_specification_is_good() {
        let headers = [
            ("Webhook-Id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("WEBHOOK-TIMESTAMP", "1614265330"),
            ("webhook-signature", "v2,x v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ];
        let body = br#"{"test": 2432232314}"#;
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(verify_at([SECRET], headers, body, at(1_614_265_330)), Ok(()));
        assert_eq!(verify_at([OTHER, SECRET], headers, body, at(1_614_265_630)), Ok(()), "300 s later");
        let late = verify_at([SECRET], headers, body, at(1_614_265_631));
        assert_eq!(late, Err(SignatureError::Timestamp), "301 s later");
        let late = at(1_614_265_630) + Duration::from_millis(1);
        let late = verify_at([SECRET], headers, body, late);
        assert_eq!(late, Err(SignatureError::Timestamp), "a millisecond more than 300 s later");
        let other = verify_at([SECRET], headers, b"{}", at(1_614_265_330));
        assert_eq!(other, Err(SignatureError::Signature), "another body");
        let none = verify_at([SECRET], headers.into_iter().skip(1), body, at(1_614_265_330));
        assert_eq!(none, Err(SignatureError::Missing), "no id");
        for secret in ["whsec_?", "whsec_AAAA"] {
            assert_eq!(verify_at([secret], headers, body, at(1_614_265_330)), Err(SignatureError::Secret));
        }
    }
}
