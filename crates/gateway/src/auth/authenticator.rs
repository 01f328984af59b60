//! From a token to an identity: open mode, the static token, JWTs.
//!
//! The static token is tried first, in constant time. What a refusal says never contains any part of the token.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::{Code, Millis};

use super::jwks::Jwks;
use super::jwt::Verifier;
use super::{Identity, LEEWAY, Policy, Secret};

/// Longest token that is looked at: a huge one costs its sender more than the hub.
const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// How tokens are checked. All `None`: open mode.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// `WS_TOKEN`: one token that may do everything.
    pub static_token: Option<Secret>,
    /// `JWT_SECRET`: signs HS256 tokens.
    pub jwt_secret: Option<Secret>,
    /// `JWT_JWKS_URL`: where the public keys of RS/PS/ES/EdDSA tokens are.
    pub jwks_url: Option<String>,
    /// `JWT_AUD`: the audience a JWT must name.
    pub audience: Option<String>,
    /// `JWT_ISS`: the issuer a JWT must name.
    pub issuer: Option<String>,
    /// Most that the clocks of the hub and of the token's issuer may differ.
    pub leeway: Duration,
    /// What other hubs of the cluster prove themselves with. `None`: there are none.
    pub cluster_secret: Option<Secret>,
    /// What a JWT without `policy` and without scopes may do. Empty: nothing.
    pub default_scopes: Vec<String>,
}

impl AuthConfig {
    /// True if no token is needed. Then the hub must listen on loopback only.
    pub fn is_open(&self) -> bool {
        self.static_token.is_none() && self.jwt_secret.is_none() && self.jwks_url.is_none()
    }
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            static_token: None,
            jwt_secret: None,
            jwks_url: None,
            audience: None,
            issuer: None,
            leeway: LEEWAY,
            cluster_secret: None,
            default_scopes: Vec::new(),
        }
    }
}

/// A configuration that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {reason}")]
pub struct ConfigError {
    /// The setting at fault.
    pub setting: &'static str,
    /// What is wrong with it and what would be right.
    pub reason: String,
}

/// Why a token was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}")]
pub struct Refusal {
    /// `no_token`, `bad_token`, `jwt_invalid` or `token_expired`.
    pub code: Code,
    /// For people.
    pub msg: String,
}

impl Refusal {
    pub(super) fn jwt(msg: impl Into<String>) -> Self {
        Self { code: Code::JwtInvalid, msg: msg.into() }
    }
}

/// Checks tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Authenticator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    static_token: Option<Secret>,
    cluster_secret: Option<Secret>,
    jwt: Option<Verifier>,
    jwks: Option<Arc<Jwks>>,
}

impl Authenticator {
    /// Checks the configuration. Fetches nothing yet: see [`run`](Self::run).
    ///
    /// # Errors
    /// Names the setting that cannot work.
    pub fn new(config: &AuthConfig) -> Result<Self, ConfigError> {
        let default_policy = Policy::from_scopes(&config.default_scopes)
            .map_err(|malformed| ConfigError { setting: "default_scopes", reason: malformed.to_string() })?;
        let jwks = match &config.jwks_url {
            Some(url) => {
                Some(Arc::new(Jwks::new(url).map_err(|reason| ConfigError { setting: "jwt_jwks_url", reason })?))
            }
            None => None,
        };
        let jwt = (config.jwt_secret.is_some() || jwks.is_some()).then(|| {
            Verifier::new(
                config.jwt_secret.as_ref(),
                jwks.clone(),
                config.audience.clone(),
                config.issuer.clone(),
                config.leeway,
                default_policy,
            )
        });
        let (static_token, cluster_secret) = (config.static_token.clone(), config.cluster_secret.clone());
        Ok(Self(Arc::new(Inner { static_token, cluster_secret, jwt, jwks })))
    }

    /// Everybody may do everything.
    pub fn open() -> Self {
        Self(Arc::new(Inner { static_token: None, cluster_secret: None, jwt: None, jwks: None }))
    }

    /// True if no token is needed. Then the hub must listen on loopback only.
    pub fn is_open(&self) -> bool {
        self.0.static_token.is_none() && self.0.jwt.is_none()
    }

    /// True if tokens can be checked now.
    ///
    /// # Errors
    /// Why not: the signing keys have not been loaded yet.
    pub fn ready(&self) -> Result<(), String> {
        self.0.jwks.as_ref().map_or(Ok(()), |jwks| jwks.ready())
    }

    /// Loads the signing keys and keeps them fresh, until the last authenticator is gone. Returns at once without JWKS.
    pub async fn run(&self) {
        if let Some(jwks) = &self.0.jwks {
            Jwks::run(Arc::downgrade(jwks)).await;
        }
    }

    /// Another hub of the cluster, for the subscriber that `origin` names.
    ///
    /// # Errors
    /// `bad_token`: it does not know the cluster's secret.
    pub fn authenticate_relay(&self, token: Option<&str>, origin: &str) -> Result<Identity, Refusal> {
        let known =
            token.is_some_and(|token| self.0.cluster_secret.as_ref().is_some_and(|secret| secret.equals(token)));
        let origin = origin.rsplit_once('/').and_then(|(hub, number)| Some((hub, number.parse().ok()?)));
        match origin {
            Some((hub, subscription)) if known => {
                Ok(Identity::relay(promethean_bus::Origin { hub: hub.into(), subscription }))
            }
            _ => {
                let msg = "this hub does not know that cluster; give all hubs the same cluster_secret".to_owned();
                Err(Refusal { code: Code::BadToken, msg })
            }
        }
    }

    /// Who brings this token. In open mode everybody, with or without one.
    ///
    /// # Errors
    /// `no_token`, `bad_token` (static token only), `jwt_invalid` or `token_expired`.
    pub async fn authenticate(&self, token: Option<&str>) -> Result<Identity, Refusal> {
        if self.is_open() {
            return Ok(Identity::wide_open());
        }
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            return Err(Refusal {
                code: Code::NoToken,
                msg: "a token is needed: AUTH or Authorization: Bearer".into(),
            });
        };
        if self.0.static_token.as_ref().is_some_and(|secret| secret.equals(token)) {
            return Ok(Identity::wide_open());
        }
        let Some(jwt) = &self.0.jwt else {
            return Err(Refusal { code: Code::BadToken, msg: "the token is not the one this hub expects".into() });
        };
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::jwt(format!(
                "the token has {} bytes, at most {MAX_TOKEN_BYTES} are read",
                token.len()
            )));
        }
        jwt.verify(token, Millis::now()).await
    }
}

#[cfg(test)]
#[path = "authenticator_tests.rs"]
mod tests;
