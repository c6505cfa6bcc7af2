//! The secret of a pushed queue, and its signatures: `whsec_` and `v1` of the Standard Webhooks specification.

use std::fmt::{self, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What the text of a secret begins with.
const PREFIX: &str = "whsec_";
/// Bytes of a new secret.
const BYTES: usize = 32;

/// A secret as its owner sees it. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A new one. Fails only when the machine has no random bytes.
    pub fn random() -> Result<Secret> {
        let mut bytes = [0; BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| Error::refused("no random bytes for a secret"))?;
        Ok(Secret(format!("{PREFIX}{}", STANDARD.encode(bytes))))
    }

    /// The text: for the store and for its owner, once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The key that signs. `None` when the text is no secret of ours.
    fn key(&self) -> Option<hmac::Key> {
        let bytes = STANDARD.decode(self.0.strip_prefix(PREFIX)?).ok()?;
        Some(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Signs with one secret, or with two after a change.
#[derive(Clone, Debug)]
pub struct Signer(Vec<hmac::Key>);

impl Signer {
    /// Signs with each of them. `None` when one is no secret of ours.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Option<Signer> {
        secrets.into_iter().map(Secret::key).collect::<Option<_>>().map(Signer)
    }

    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, seconds: u64, body: &[u8]) -> String {
        let mut text = String::with_capacity(48 * self.0.len());
        for key in &self.0 {
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
        let secret = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into());
        let signer = Signer::new([&secret]).expect("a secret");
        let signature =
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let two = Signer::new([&secret, &secret]).expect("secrets");
        let signature = two.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(
            signature,
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_secret_is_32_random_bytes_and_not_shown() {
        let (one, other) = (Secret::random().expect("random"), Secret::random().expect("random"));
        assert_ne!(one, other, "each is another one");
        assert_eq!(one.reveal().len(), PREFIX.len() + 44, "{one:?}: 32 bytes in base64");
        assert!(!format!("{one:?}").contains(&one.reveal()[7..]), "Debug shows it");
        assert!(Signer::new([&one]).is_some() && Signer::new([&Secret("x".into())]).is_none());
    }
}
