//! JSON Web Tokens: signature, time, audience, issuer, and what they allow.
//!
//! The configuration says which algorithms count: HS256 with the secret only, RS/PS/ES/EdDSA with a key of the JWKS of
//! that very kind only. A public key is never used as a secret, whatever the token's header says. Claims are read only
//! after the signature was verified, and messages never repeat what a token holds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use promethean_event::{Code, Millis};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::jwks::Jwks;
use super::{Identity, Policy, Refusal, Secret};

/// Longest key id that is looked up.
const MAX_KID_BYTES: usize = 1024;

#[derive(Debug)]
pub(super) struct Verifier {
    secret: Option<DecodingKey>,
    jwks: Option<Arc<Jwks>>,
    audience: Option<String>,
    issuer: Option<String>,
    leeway: Duration,
    /// For tokens without `policy` and without scopes.
    default_policy: Arc<Policy>,
}

/// The claims that count. `Value` where the type is checked by hand, so that the message names the claim.
#[derive(Deserialize)]
struct Claims {
    sub: Option<Value>,
    exp: Option<Value>,
    nbf: Option<Value>,
    aud: Option<Value>,
    iss: Option<Value>,
    policy: Option<Box<RawValue>>,
    scopes: Option<Value>,
    /// RFC 9068.
    scope: Option<Value>,
    /// Microsoft's and Okta's name for `scope`.
    scp: Option<Value>,
}

impl Verifier {
    pub(super) fn new(
        secret: Option<&Secret>,
        jwks: Option<Arc<Jwks>>,
        audience: Option<String>,
        issuer: Option<String>,
        leeway: Duration,
        default_policy: Policy,
    ) -> Self {
        // Already installed is fine: there is one provider in this build.
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
        let secret = secret.map(|secret| DecodingKey::from_secret(secret.expose().as_bytes()));
        Self { secret, jwks, audience, issuer, leeway, default_policy: Arc::new(default_policy) }
    }

    pub(super) async fn verify(&self, token: &str, now: Millis) -> Result<Identity, Refusal> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| unreadable(token))?;
        if header.crit.is_some() {
            return Err(Refusal::jwt("the JWT's header has crit extensions, which this hub does not know"));
        }
        let claims = match (&self.secret, &self.jwks) {
            (Some(secret), _) if header.alg == Algorithm::HS256 => signed_claims(token, secret, Algorithm::HS256)?,
            (_, Some(jwks)) if is_asymmetric(header.alg) => from_key_set(token, &header, jwks).await?,
            _ => {
                let message = format!("the JWT's alg, {:?}, is not one that this hub is configured for", header.alg);
                return Err(Refusal::jwt(message));
            }
        };
        self.identity(claims, now)
    }

    fn identity(&self, claims: Claims, now: Millis) -> Result<Identity, Refusal> {
        let exp = time_claim(claims.exp.as_ref(), "exp")?.ok_or_else(|| Refusal::jwt("the JWT has no exp"))?;
        if now >= exp + self.leeway {
            return Err(Refusal { code: Code::TokenExpired, msg: "the JWT has expired; get a new one".into() });
        }
        if time_claim(claims.nbf.as_ref(), "nbf")?.is_some_and(|nbf| now + self.leeway < nbf) {
            return Err(Refusal::jwt("the JWT is not valid yet (nbf): compare the clocks"));
        }
        if self.audience.as_deref().is_some_and(|wanted| !names(claims.aud.as_ref(), wanted)) {
            return Err(Refusal::jwt("the JWT is for another audience (aud)"));
        }
        if self.issuer.as_deref().is_some_and(|wanted| claims.iss.as_ref().and_then(Value::as_str) != Some(wanted)) {
            return Err(Refusal::jwt("the JWT is from another issuer (iss)"));
        }
        let sub = match claims.sub {
            None | Some(Value::Null) => None,
            Some(Value::String(sub)) => Some(sub),
            Some(_) => return Err(Refusal::jwt("the JWT's sub is not a string")),
        };
        let scopes = scopes_of([("scopes", claims.scopes), ("scope", claims.scope), ("scp", claims.scp)])?;
        let policy = match (claims.policy, scopes) {
            (Some(policy), _) => Policy::parse(policy.get()).map(Arc::new),
            (None, Some(scopes)) => Policy::from_token_scopes(&scopes).map(Arc::new),
            (None, None) => Ok(Arc::clone(&self.default_policy)),
        };
        let policy = policy.map_err(|malformed| Refusal::jwt(format!("the JWT's {malformed}")))?;
        Ok(Identity { sub, exp: Some(exp), leeway: self.leeway, policy, relay: None })
    }
}

async fn from_key_set(token: &str, header: &Header, jwks: &Arc<Jwks>) -> Result<Claims, Refusal> {
    let kid = header.kid.as_deref();
    if kid.is_some_and(|kid| kid.len() > MAX_KID_BYTES) {
        return Err(Refusal::jwt(format!("the JWT's kid is longer than {MAX_KID_BYTES} bytes")));
    }
    let keys = jwks.keys(kid, header.alg).await.map_err(Refusal::jwt)?;
    // More than one only where neither the token nor the keys have a kid.
    let mut refused = Refusal::jwt("no signing key fits the JWT");
    for key in keys {
        match signed_claims(token, &key, header.alg) {
            Ok(claims) => return Ok(claims),
            Err(refusal) => refused = refusal,
        }
    }
    Err(refused)
}

/// Algorithms that tokens are signed with elsewhere, and that cannot be verified here.
const UNSUPPORTED: [&str; 2] = ["ES512", "ES256K"];

/// Why a header cannot be read: it is none, or its algorithm is not supported.
fn unreadable(token: &str) -> Refusal {
    #[derive(Deserialize)]
    struct Alg {
        alg: String,
    }
    let header = token.split('.').next().and_then(|header| URL_SAFE_NO_PAD.decode(header).ok());
    let alg = header.and_then(|header| serde_json::from_slice::<Alg>(&header).ok());
    match UNSUPPORTED.into_iter().find(|name| alg.as_ref().is_some_and(|header| header.alg == *name)) {
        Some(name) => Refusal::jwt(format!(
            "the JWT is signed with {name}, which this hub cannot verify: have it signed with ES256, ES384, EdDSA, RS256 to \
             RS512 or PS256 to PS512"
        )),
        None => Refusal::jwt("not a JWT, or signed in a way that this hub does not know"),
    }
}

fn is_asymmetric(algorithm: Algorithm) -> bool {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    matches!(algorithm, RS256 | RS384 | RS512 | PS256 | PS384 | PS512 | ES256 | ES384 | EdDSA)
}

/// Verifies the signature and nothing else: times and names are checked by [`Verifier::identity`].
fn signed_claims(token: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<Claims, Refusal> {
    let mut only_signature = Validation::new(algorithm);
    only_signature.required_spec_claims = HashSet::new();
    only_signature.validate_exp = false;
    only_signature.validate_aud = false;
    match jsonwebtoken::decode::<Claims>(token, key, &only_signature) {
        Ok(data) => Ok(data.claims),
        Err(error) => Err(Refusal::jwt(match error.kind() {
            ErrorKind::InvalidSignature => "the JWT's signature does not verify",
            ErrorKind::Json(_) | ErrorKind::Utf8(_) => "the JWT's claims are not a JSON object",
            ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => "the JWT's alg does not fit the signing key",
            _ => "the JWT cannot be verified",
        })),
    }
}

/// Seconds since the epoch, whole or not.
fn time_claim(claim: Option<&Value>, name: &str) -> Result<Option<Millis>, Refusal> {
    let Some(claim) = claim else { return Ok(None) };
    let millis = claim.as_f64().map(|seconds| seconds * 1000.0).filter(|millis| (0.0..9e15).contains(millis));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked above")]
    millis.map(|millis| Some(Millis(millis as u64))).ok_or_else(|| Refusal::jwt(format!("the JWT's {name} is no time")))
}

/// True if an `aud` claim, a string or a list, names `wanted`.
fn names(claim: Option<&Value>, wanted: &str) -> bool {
    match claim {
        Some(Value::String(one)) => one == wanted,
        Some(Value::Array(many)) => many.iter().any(|one| one.as_str() == Some(wanted)),
        _ => false,
    }
}

/// Joins the scopes of every claim that the token has; `None` without any of them.
///
/// `scope` and `scp` are shared with other services, so a bare word there (`admin`) never means a hub's action.
fn scopes_of(claims: [(&str, Option<Value>); 3]) -> Result<Option<Vec<String>>, Refusal> {
    let mut all = None;
    for (name, claim) in claims {
        let Some(claim) = claim else { continue };
        let scopes = strings(claim)
            .ok_or_else(|| Refusal::jwt(format!("the JWT's {name} is neither a list of strings nor a string")))?;
        let counts = |scope: &String| name == "scopes" || scope.contains(':');
        all.get_or_insert_with(Vec::new).extend(scopes.into_iter().filter(counts));
    }
    Ok(all)
}

/// Splits a list of strings, or a string at its white space.
fn strings(claim: Value) -> Option<Vec<String>> {
    match claim {
        Value::String(text) => Some(text.split_ascii_whitespace().map(str::to_owned).collect()),
        list => serde_json::from_value(list).ok(),
    }
}
