//! For the tests of this module: signing keys of every kind, and an identity provider on loopback.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use promethean_event::Millis;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A private key with its algorithm and key id.
pub(super) struct Signer {
    pub(super) algorithm: Algorithm,
    pub(super) kid: Option<&'static str>,
    key: EncodingKey,
    /// The public half of an Ed25519 key, which the library cannot tell from the private one.
    ed_public: Vec<u8>,
}

impl Signer {
    pub(super) fn new(algorithm: Algorithm, kid: Option<&'static str>) -> Self {
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
        let mut ed_public = Vec::new();
        let mut pkcs8 = |kind| {
            let pair = rcgen::KeyPair::generate_for(kind).expect("a key pair");
            ed_public = rcgen::PublicKeyData::der_bytes(&pair).to_vec();
            pair.serialize_der()
        };
        let key = match algorithm {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => EncodingKey::from_secret(b"secret"),
            Algorithm::ES256 => EncodingKey::from_ec_der(&pkcs8(&rcgen::PKCS_ECDSA_P256_SHA256)),
            Algorithm::ES384 => EncodingKey::from_ec_der(&pkcs8(&rcgen::PKCS_ECDSA_P384_SHA384)),
            Algorithm::EdDSA => EncodingKey::from_ed_der(&pkcs8(&rcgen::PKCS_ED25519)),
            // PKCS#1 is what PKCS#8 wraps, after 26 bytes for a key of 2048 bits.
            _ => EncodingKey::from_rsa_der(&pkcs8(&rcgen::PKCS_RSA_SHA256)[26..]),
        };
        Self { algorithm, kid, key, ed_public }
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = self.kid.map(str::to_owned);
        self.sign_with(&header, claims)
    }

    pub(super) fn sign_with(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.key).expect("a signed token")
    }

    pub(super) fn jwk(&self) -> Value {
        if self.algorithm == Algorithm::EdDSA {
            let x = URL_SAFE_NO_PAD.encode(&self.ed_public);
            let mut jwk = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": x});
            if let Some(kid) = self.kid {
                jwk["kid"] = kid.into();
            }
            return jwk;
        }
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).expect("a public key");
        jwk.common.key_id = self.kid.map(str::to_owned);
        serde_json::to_value(jwk).expect("json")
    }
}

pub(super) fn key_set(signers: &[&Signer]) -> String {
    json!({ "keys": signers.iter().map(|signer| signer.jwk()).collect::<Vec<_>>() }).to_string()
}

/// Claims that are good for a while, plus `more`.
pub(super) fn claims(more: Value) -> Value {
    let mut claims = json!({ "sub": "somebody", "exp": Millis::now().0 / 1000 + 600 });
    if let (Value::Object(claims), Value::Object(more)) = (&mut claims, more) {
        claims.extend(more);
    }
    claims
}

/// What the provider does with a request.
#[derive(Clone)]
pub(super) enum Answer {
    Body(String),
    Raw(String),
    Never,
}

/// An identity provider on loopback that counts requests.
pub(super) struct Provider {
    pub(super) url: String,
    hits: Arc<AtomicUsize>,
    answer: Arc<Mutex<Answer>>,
}

impl Provider {
    pub(super) async fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
        let (hits, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(answer)));
        let (counted, current) = (Arc::clone(&hits), Arc::clone(&answer));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let answer = current.lock().clone();
                tokio::spawn(async move {
                    let mut head = [0; 4096];
                    let _ = stream.read(&mut head).await;
                    let text = match answer {
                        Answer::Body(body) => {
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                        }
                        Answer::Raw(text) => text,
                        Answer::Never => return tokio::time::sleep(Duration::from_secs(60)).await,
                    };
                    // Slow enough that callers at the same time meet.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let _ = stream.write_all(text.as_bytes()).await;
                });
            }
        });
        Self { url, hits, answer }
    }

    pub(super) fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    pub(super) fn now_answer(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }
}
