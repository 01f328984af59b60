//! The key set of an identity provider, cached.
//!
//! One fetch at a time; whoever comes meanwhile waits for it. An unknown `kid` fetches again, at most once in 30 s, so
//! that made-up tokens cannot turn the hub against the provider. When a fetch fails the old keys go on counting.

use std::sync::{Arc, Weak};
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::fetch::Source;

/// Most keys of a set that are kept; providers publish a handful.
const MAX_KEYS: usize = 100;

#[derive(Debug, Clone, Copy)]
struct Timing {
    /// Shortest time between two fetches for unknown key ids.
    unknown_kid: Duration,
    /// Shortest time between two fetches while there are no keys at all.
    empty: Duration,
    /// How often the keys are fetched anyway.
    renew: Duration,
    /// How long one fetch may take.
    fetch: Duration,
}

const TIMING: Timing = Timing {
    unknown_kid: Duration::from_secs(30),
    empty: Duration::from_secs(1),
    renew: Duration::from_secs(600),
    fetch: Duration::from_secs(5),
};

#[derive(Debug)]
pub(super) struct Jwks {
    source: Source,
    timing: Timing,
    state: RwLock<State>,
    /// Held while fetching.
    flight: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// `None` until the first fetch succeeded.
    keys: Option<Arc<[Key]>>,
    /// Counts fetches that ended, so that a waiter sees that it need not fetch itself.
    fetches: u64,
    last_fetch: Option<Instant>,
    last_for_unknown: Option<Instant>,
    /// Why the last fetch failed; for people.
    problem: String,
}

#[derive(Debug)]
struct Key {
    kid: Option<String>,
    kind: Kind,
    /// The only algorithm the set allows for it, where the set says so.
    only: Option<Algorithm>,
    key: DecodingKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl Key {
    /// `None` for keys that cannot verify signatures here: secrets, encryption keys, unknown curves.
    fn parse(json: &RawValue) -> Option<Self> {
        let jwk: Jwk = serde_json::from_str(json.get()).ok()?;
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let kind = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => Kind::Rsa,
            AlgorithmParameters::EllipticCurve(ec) => match ec.curve {
                EllipticCurve::P256 => Kind::P256,
                EllipticCurve::P384 => Kind::P384,
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(okp) if okp.curve == EllipticCurve::Ed25519 => Kind::Ed25519,
            _ => return None,
        };
        let only = match jwk.common.key_algorithm {
            Some(algorithm) => Some(Algorithm::try_from(algorithm).ok()?),
            None => None,
        };
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self { kid: jwk.common.key_id, kind, only, key })
    }

    fn fits(&self, kid: Option<&str>, algorithm: Algorithm) -> bool {
        let kind_fits = match self.kind {
            Kind::Rsa => algorithm.family() == AlgorithmFamily::Rsa,
            Kind::P256 => algorithm == Algorithm::ES256,
            Kind::P384 => algorithm == Algorithm::ES384,
            Kind::Ed25519 => algorithm == Algorithm::EdDSA,
        };
        kind_fits
            && self.only.is_none_or(|only| only == algorithm)
            && kid.is_none_or(|kid| self.kid.as_deref() == Some(kid))
    }
}

impl Jwks {
    /// # Errors
    /// The address cannot be used: not https, nor loopback.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        Self::with_timing(url, TIMING)
    }

    fn with_timing(url: &str, timing: Timing) -> Result<Self, String> {
        let state = State {
            keys: None,
            fetches: 0,
            last_fetch: None,
            last_for_unknown: None,
            problem: "the signing keys have not been fetched yet".into(),
        };
        Ok(Self { source: Source::parse(url)?, timing, state: RwLock::new(state), flight: tokio::sync::Mutex::new(()) })
    }

    /// True if there are keys.
    pub(super) fn ready(&self) -> Result<(), String> {
        let state = self.state.read();
        if state.keys.is_some() { Ok(()) } else { Err(state.problem.clone()) }
    }

    /// Fetches the keys now and from time to time, until nobody needs them any more.
    pub(super) async fn run(jwks: Weak<Self>) {
        let mut pause = Duration::from_secs(1);
        while let Some(this) = jwks.upgrade() {
            Self::refresh(&this, false).await;
            let (loaded, renew) = (this.ready().is_ok(), this.timing.renew);
            drop(this);
            tokio::time::sleep(if loaded { renew } else { pause }).await;
            pause = (pause * 2).min(Duration::from_secs(30));
        }
    }

    /// The keys that may have signed a token with this header; never empty.
    ///
    /// # Errors
    /// Why there are none, for people.
    pub(super) async fn keys(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Vec<DecodingKey>, String> {
        let found = self.find(kid, algorithm);
        if !found.is_empty() {
            return Ok(found);
        }
        // In a task of its own: a client that hangs up must not stop what others wait for.
        let this = Arc::clone(self);
        let _ = tokio::spawn(async move { Self::refresh(&this, true).await }).await;
        let found = self.find(kid, algorithm);
        if !found.is_empty() {
            return Ok(found);
        }
        self.ready()?;
        Err("no signing key of the identity provider fits the JWT's kid and alg".into())
    }

    fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Vec<DecodingKey> {
        let state = self.state.read();
        let keys = state.keys.iter().flat_map(|keys| keys.iter());
        keys.filter(|key| key.fits(kid, algorithm)).map(|key| key.key.clone()).collect()
    }

    /// Fetches, unless somebody else just did or it is too soon.
    async fn refresh(this: &Arc<Self>, on_demand: bool) {
        let seen = this.state.read().fetches;
        let _flight = this.flight.lock().await;
        {
            let mut state = this.state.write();
            if state.fetches != seen || (on_demand && !state.may_fetch(this.timing)) {
                return;
            }
            if on_demand && state.keys.is_some() {
                state.last_for_unknown = Some(Instant::now());
            }
        }
        let fetched = match tokio::time::timeout(this.timing.fetch, this.source.get()).await {
            Ok(Ok(body)) => parse(&body),
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err(format!("no answer within {:?}", this.timing.fetch)),
        };
        let mut state = this.state.write();
        state.fetches += 1;
        state.last_fetch = Some(Instant::now());
        match fetched {
            Ok(keys) => state.keys = Some(keys),
            Err(reason) => {
                let stale = if state.keys.is_some() { "; the old keys go on counting" } else { "" };
                tracing::warn!(url = this.source.shown(), reason, "fetching the JWT signing keys failed{stale}");
                state.problem = format!("the JWT signing keys cannot be fetched: {reason}");
            }
        }
    }
}

impl State {
    /// True if a token may cause a fetch now.
    fn may_fetch(&self, timing: Timing) -> bool {
        let (last, pause) = match self.keys {
            Some(_) => (self.last_for_unknown, timing.unknown_kid),
            None => (self.last_fetch, timing.empty),
        };
        last.is_none_or(|last| last.elapsed() >= pause)
    }
}

#[derive(Deserialize)]
struct KeySet<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// Keys that cannot be used are left out; a set without a single usable one is an error.
fn parse(body: &[u8]) -> Result<Arc<[Key]>, String> {
    let set: KeySet<'_> =
        serde_json::from_slice(body).map_err(|_| "the answer is not a JSON Web Key Set".to_owned())?;
    let keys: Arc<[Key]> = set.keys.into_iter().filter_map(Key::parse).take(MAX_KEYS).collect();
    if keys.is_empty() {
        Err("the key set has no key that can verify signatures: RSA, P-256, P-384 or Ed25519".into())
    } else {
        Ok(keys)
    }
}

#[cfg(test)]
#[path = "jwks_tests.rs"]
mod tests;
