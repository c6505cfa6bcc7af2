//! The secret of a pushed queue, and its signatures: `whsec_` and `v1` of the Standard Webhooks specification.

use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::random;

/// Prefix of a secret.
const PREFIX: &str = "whsec_";
const BYTES: usize = 32;

/// A secret as shown to its owner. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SigningSecret(String);

impl SigningSecret {
    pub fn random() -> SigningSecret {
        SigningSecret(format!("{PREFIX}{}", STANDARD.encode(random::bytes::<BYTES>())))
    }

    /// Returns the text of the secret, for the store and, once, for its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the signing key. `None` if the text is not a valid secret.
    fn key(&self) -> Option<hmac::Key> {
        let bytes = STANDARD.decode(self.0.strip_prefix(PREFIX)?).ok()?;
        Some(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(..)")
    }
}

/// Signs with one secret, or with two after a change. Each key has the time until which it signs.
#[derive(Clone, Debug)]
pub struct Signer(Vec<(hmac::Key, Millis)>);

impl Signer {
    /// Returns a signer that uses each secret until its time. `None` if one is invalid.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a SigningSecret, Millis)>) -> Option<Signer> {
        secrets
            .into_iter()
            .map(|(secret, until)| Some((secret.key()?, until)))
            .collect::<Option<_>>()
            .map(Signer)
    }

    /// Returns the value of `webhook-signature`. `now` is the time of day.
    pub fn sign(&self, id: &str, now: Millis, body: &[u8]) -> String {
        let seconds = now / 1000;
        let mut text = String::with_capacity(48 * self.0.len());
        for (key, _) in self.0.iter().filter(|(_, until)| now < *until) {
            let mut signing = hmac::Context::with_key(key);
            signing.update(id.as_bytes());
            signing.update(format!(".{seconds}.").as_bytes());
            signing.update(body);
            let blank = if text.is_empty() { "" } else { " " };
            // Writing to a string does not fail.
            let _ = write!(text, "{blank}v1,{}", STANDARD.encode(signing.sign()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification and its reference libraries.
    #[test]
    fn signatures_are_those_of_the_specification() {
        let secret = SigningSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into());
        let now = 1_614_265_330_000;
        let signer = Signer::new([(&secret, now + 2), (&secret, now + 1)]).expect("secrets");
        let sign = |now| signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", now, br#"{"test": 2432232314}"#);
        let one = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(now), format!("{one} {one}"), "two sign");
        assert_eq!(sign(now + 1), one, "the second does not sign any more");
    }

    #[test]
    fn a_secret_is_32_random_bytes_and_not_shown() {
        let (one, other) = (SigningSecret::random(), SigningSecret::random());
        assert_ne!(one, other, "two secrets differ");
        assert_eq!(one.reveal().len(), PREFIX.len() + 44, "{one:?}: 32 bytes in base64");
        assert!(!format!("{one:?}").contains(&one.reveal()[7..]), "Debug shows it");
        assert!(one.key().is_some() && SigningSecret("x".into()).key().is_none());
    }
}
