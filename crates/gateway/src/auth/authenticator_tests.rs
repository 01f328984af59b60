//! Tokens, good and bad, one named test each; and a canary that no refusal may repeat.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Header};
use promethean_event::Topic;
use serde_json::{Value, json};

use super::super::Action;
use super::super::testing::{Answer, Provider, Signer, claims, key_set};
use super::*;

fn hs256() -> AuthConfig {
    AuthConfig { jwt_secret: Some(Secret::new("secret")), ..AuthConfig::default() }
}

fn authenticator(config: &AuthConfig) -> Authenticator {
    Authenticator::new(config).expect("a good configuration")
}

fn signer() -> Signer {
    Signer::new(Algorithm::HS256, None)
}

async fn refused(config: &AuthConfig, token: &str) -> String {
    refused_as(Code::JwtInvalid, config, token).await
}

async fn refused_as(code: Code, config: &AuthConfig, token: &str) -> String {
    let refusal = authenticator(config).authenticate(Some(token)).await.expect_err("refused");
    assert_eq!(refusal.code, code);
    assert!(token.len() < 5 || !refusal.msg.contains(token));
    refusal.msg
}

fn may(identity: &Identity, action: Action, topic: &str) -> bool {
    identity.policy.allows(action, &Topic::parse(topic).expect("a topic"), None)
}

#[tokio::test]
async fn open_mode_takes_any_token_or_none() {
    let open = authenticator(&AuthConfig::default());
    assert!(open.is_open() && Authenticator::open().is_open());
    for token in [None, Some(""), Some("anything")] {
        let identity = open.authenticate(token).await.expect("open");
        assert!(identity.policy.is_wide_open() && identity.exp.is_none());
    }
}

#[tokio::test]
async fn the_static_token_may_do_everything_and_another_is_bad() {
    let config = AuthConfig { static_token: Some(Secret::new("canary")), ..AuthConfig::default() };
    let auth = authenticator(&config);
    assert!(!auth.is_open());
    assert!(auth.authenticate(Some("canary")).await.expect("the token").policy.is_wide_open());
    for (token, code) in [(None, Code::NoToken), (Some(""), Code::NoToken), (Some("canary2"), Code::BadToken)] {
        assert_eq!(auth.authenticate(token).await.expect_err("refused").code, code);
    }
}

#[tokio::test]
async fn with_both_the_static_token_is_tried_first_and_then_the_jwt() {
    let config = AuthConfig { static_token: Some(Secret::new("static")), ..hs256() };
    let auth = authenticator(&config);
    assert!(auth.authenticate(Some("static")).await.expect("static").policy.is_wide_open());
    let jwt = signer().sign(&claims(json!({"scopes": []})));
    assert_eq!(auth.authenticate(Some(&jwt)).await.expect("jwt").sub.as_deref(), Some("somebody"));
    assert_eq!(auth.authenticate(Some("neither")).await.expect_err("neither").code, Code::JwtInvalid);
}

#[tokio::test]
async fn a_good_jwt_brings_its_subject_its_end_and_its_scopes() {
    let end = Millis::now().0 / 1000 + 60;
    let token = signer().sign(&json!({"sub": "me", "exp": end, "scopes": ["publish:a.*"]}));
    let identity = authenticator(&hs256()).authenticate(Some(&token)).await.expect("good");
    assert_eq!((identity.sub.as_deref(), identity.exp), (Some("me"), Some(Millis(end * 1000))));
    assert!(may(&identity, Action::Publish, "a.b") && !may(&identity, Action::Subscribe, "a.b"));
    assert!(!identity.is_expired(Millis(end * 1000 + 4_999)) && identity.is_expired(Millis(end * 1000 + 5_000)));
}

#[tokio::test]
async fn a_policy_wins_over_scopes_and_neither_allows_nothing() {
    let auth = authenticator(&hs256());
    let policy = json!({"rules": [{"effect": "allow", "action": "subscribe", "topics": ["b"]}]});
    let both = signer().sign(&claims(json!({"policy": policy, "scopes": ["*:**"]})));
    let identity = auth.authenticate(Some(&both)).await.expect("good");
    assert!(may(&identity, Action::Subscribe, "b") && !may(&identity, Action::Publish, "b"));
    let neither = auth.authenticate(Some(&signer().sign(&claims(json!({}))))).await.expect("good");
    for action in [Action::Publish, Action::Subscribe, Action::Admin] {
        assert!(!may(&neither, action, "a"));
    }
}

#[tokio::test]
async fn default_scopes_count_for_tokens_without_scopes_only() {
    let auth = authenticator(&AuthConfig { default_scopes: vec!["publish:a".into()], ..hs256() });
    let without = auth.authenticate(Some(&signer().sign(&claims(json!({}))))).await.expect("good");
    assert!(may(&without, Action::Publish, "a"));
    let empty = auth.authenticate(Some(&signer().sign(&claims(json!({"scopes": []}))))).await.expect("good");
    assert!(!may(&empty, Action::Publish, "a"));
}

#[tokio::test]
async fn scope_and_scp_count_like_scopes_as_a_list_or_as_text_and_together() {
    let auth = authenticator(&AuthConfig { default_scopes: vec!["subscribe:**".into()], ..hs256() });
    for claim in ["scopes", "scope", "scp"] {
        for value in [json!(["publish:a", "openid", "subscribe:b"]), json!("publish:a  openid subscribe:b")] {
            let token = signer().sign(&claims(json!({claim: value})));
            let identity = auth.authenticate(Some(&token)).await.expect(claim);
            assert!(may(&identity, Action::Publish, "a") && may(&identity, Action::Subscribe, "b"), "{claim}");
            assert!(!may(&identity, Action::Subscribe, "c"), "{claim}: default_scopes do not widen it");
        }
        for empty in [json!([]), json!(""), json!("openid profile")] {
            let token = signer().sign(&claims(json!({claim: empty})));
            let identity = auth.authenticate(Some(&token)).await.expect(claim);
            assert!(!may(&identity, Action::Subscribe, "a"), "{claim}");
        }
        for wrong in [json!(1), json!({}), json!([1])] {
            let msg = refused(&hs256(), &signer().sign(&claims(json!({claim: wrong})))).await;
            assert!(msg.contains(&format!("{claim} is neither")), "{msg}");
        }
    }
    let all = json!({"scopes": ["publish:a"], "scope": "publish:b", "scp": ["publish:c"]});
    let identity = auth.authenticate(Some(&signer().sign(&claims(all)))).await.expect("good");
    assert!(["a", "b", "c"].iter().all(|topic| may(&identity, Action::Publish, topic)));
}

#[tokio::test]
async fn a_bare_word_is_an_action_in_scopes_only() {
    let auth = authenticator(&hs256());
    for (claim, allowed) in [("scopes", true), ("scope", false), ("scp", false)] {
        for value in [json!("admin openid"), json!(["admin"])] {
            let token = signer().sign(&claims(json!({claim: value})));
            let identity = auth.authenticate(Some(&token)).await.expect("good");
            assert_eq!(may(&identity, Action::Admin, "a"), allowed, "{claim}");
        }
    }
}

#[tokio::test]
async fn an_expired_token_is_refused_after_the_leeway() {
    let now = Millis::now().0 / 1000;
    let in_leeway = signer().sign(&json!({"exp": now - 2}));
    assert!(authenticator(&hs256()).authenticate(Some(&in_leeway)).await.is_ok());
    let expired = signer().sign(&json!({"exp": now - 10}));
    assert!(refused_as(Code::TokenExpired, &hs256(), &expired).await.contains("expired"));
}

#[tokio::test]
async fn the_leeway_is_a_setting_and_moves_the_end_of_a_live_connection() {
    let now = Millis::now().0 / 1000;
    let wide = AuthConfig { leeway: Duration::from_secs(60), ..hs256() };
    let token = signer().sign(&json!({"exp": now - 10, "nbf": now + 30}));
    let identity = authenticator(&wide).authenticate(Some(&token)).await.expect("within a minute");
    assert_eq!(identity.deadline(), Some(Millis((now + 50) * 1000)));
    let none = AuthConfig { leeway: Duration::ZERO, ..hs256() };
    refused_as(Code::TokenExpired, &none, &signer().sign(&json!({"exp": now - 1}))).await;
    assert!(refused(&none, &signer().sign(&claims(json!({"nbf": now + 30})))).await.contains("not valid yet"));
}

#[tokio::test]
async fn times_that_are_missing_or_odd_are_refused() {
    for (claims, why) in [
        (json!({}), "no exp"),
        (json!({"exp": "soon"}), "exp is no time"),
        (json!({"exp": -1}), "exp is no time"),
        (json!({"exp": 1e300}), "exp is no time"),
        (json!({"exp": null}), "no exp"),
        (claims(json!({"nbf": Millis::now().0 / 1000 + 60})), "not valid yet"),
        (claims(json!({"nbf": []})), "nbf is no time"),
    ] {
        let msg = refused(&hs256(), &signer().sign(&claims)).await;
        assert!(msg.contains(why), "{claims}: {msg}");
    }
}

#[tokio::test]
async fn a_wrong_or_missing_audience_is_refused() {
    let config = AuthConfig { audience: Some("hub".into()), ..hs256() };
    for aud in [json!({}), json!({"aud": "other"}), json!({"aud": ["a", "b"]}), json!({"aud": 1})] {
        assert!(refused(&config, &signer().sign(&claims(aud))).await.contains("aud"));
    }
    for aud in [json!("hub"), json!(["other", "hub"])] {
        let token = signer().sign(&claims(json!({"aud": aud})));
        assert!(authenticator(&config).authenticate(Some(&token)).await.is_ok());
        assert!(authenticator(&hs256()).authenticate(Some(&token)).await.is_ok(), "not asked for, not checked");
    }
}

#[tokio::test]
async fn a_wrong_or_missing_issuer_is_refused() {
    let config = AuthConfig { issuer: Some("https://idp".into()), ..hs256() };
    for iss in [json!({}), json!({"iss": "https://idp.evil"}), json!({"iss": ["https://idp"]})] {
        assert!(refused(&config, &signer().sign(&claims(iss))).await.contains("iss"));
    }
    let good = signer().sign(&claims(json!({"iss": "https://idp"})));
    assert!(authenticator(&config).authenticate(Some(&good)).await.is_ok());
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.", part(header), part(claims))
}

#[tokio::test]
async fn alg_none_is_refused() {
    for alg in ["none", "None", "NONE", ""] {
        let token = unsigned(&json!({"alg": alg, "typ": "JWT"}), &claims(json!({"scopes": ["*:**"]})));
        refused(&hs256(), &token).await;
    }
    refused(&hs256(), &unsigned(&json!({"alg": "HS256"}), &claims(json!({"scopes": ["*:**"]})))).await;
}

#[tokio::test]
async fn an_algorithm_that_cannot_be_verified_is_named() {
    for alg in ["ES512", "ES256K"] {
        let message = refused(&hs256(), &unsigned(&json!({"alg": alg, "typ": "JWT"}), &claims(json!({})))).await;
        assert!(message.contains(alg) && message.contains("ES384"), "{message}");
    }
    let message = refused(&hs256(), &unsigned(&json!({"alg": "canary"}), &claims(json!({})))).await;
    assert!(!message.contains("canary"), "what else a token holds is not repeated: {message}");
    let token = Signer::new(Algorithm::ES384, None).sign(&claims(json!({})));
    assert!(refused(&hs256(), &token).await.contains("ES384"), "known, but not configured");
}

#[tokio::test]
async fn scopes_that_mean_nothing_here_allow_nothing_and_do_not_harm() {
    let auth = authenticator(&hs256());
    let token = signer().sign(&claims(json!({"scopes": ["openid", "profile", "read:a", "publish:a", ""]})));
    let identity = auth.authenticate(Some(&token)).await.expect("good");
    assert!(may(&identity, Action::Publish, "a"));
    assert!(!may(&identity, Action::Subscribe, "a") && !may(&identity, Action::Publish, "b"));
    let token = signer().sign(&claims(json!({"scopes": ["openid"]})));
    let identity = auth.authenticate(Some(&token)).await.expect("good");
    assert!(!may(&identity, Action::Publish, "a") && !may(&identity, Action::Subscribe, "a"));
}

#[tokio::test]
async fn a_public_key_used_as_an_hmac_secret_is_refused() {
    let rsa = Signer::new(Algorithm::RS256, Some("k"));
    let provider = Provider::start(Answer::Body(key_set(&[&rsa]))).await;
    let config = AuthConfig { jwks_url: Some(provider.url.clone()), ..AuthConfig::default() };
    let jwk = rsa.jwk();
    for material in [jwk.to_string(), jwk["n"].as_str().expect("a modulus").to_owned()] {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("k".into());
        let key = jsonwebtoken::EncodingKey::from_secret(material.as_bytes());
        let forged = jsonwebtoken::encode(&header, &claims(json!({"scopes": ["*:**"]})), &key).expect("forged");
        assert!(refused(&config, &forged).await.contains("alg"));
    }
}

#[tokio::test]
async fn other_hmac_sizes_and_asymmetric_tokens_are_refused_with_a_secret_only() {
    for algorithm in [Algorithm::HS384, Algorithm::HS512, Algorithm::ES256, Algorithm::EdDSA] {
        let token = Signer::new(algorithm, None).sign(&claims(json!({})));
        assert!(refused(&hs256(), &token).await.contains("alg"), "{algorithm:?}");
    }
}

#[tokio::test]
async fn every_asymmetric_algorithm_verifies_against_its_key() {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    for algorithm in [RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA] {
        let (right, wrong) = (Signer::new(algorithm, Some("k")), Signer::new(algorithm, Some("k")));
        let provider = Provider::start(Answer::Body(key_set(&[&right]))).await;
        let config = AuthConfig { jwks_url: Some(provider.url.clone()), ..AuthConfig::default() };
        let identity = authenticator(&config).authenticate(Some(&right.sign(&claims(json!({}))))).await;
        assert_eq!(identity.expect("the right key").sub.as_deref(), Some("somebody"), "{algorithm:?}");
        assert!(refused(&config, &wrong.sign(&claims(json!({})))).await.contains("signature"), "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_token_without_a_kid_is_tried_with_every_key_of_its_kind() {
    let (one, two) = (Signer::new(Algorithm::ES256, None), Signer::new(Algorithm::ES256, None));
    let provider = Provider::start(Answer::Body(key_set(&[&one, &two]))).await;
    let auth = authenticator(&AuthConfig { jwks_url: Some(provider.url.clone()), ..AuthConfig::default() });
    for signer in [&one, &two] {
        assert!(auth.authenticate(Some(&signer.sign(&claims(json!({}))))).await.is_ok());
    }
}

#[tokio::test]
async fn a_huge_kid_and_a_huge_token_are_refused_without_asking_the_provider() {
    let es = Signer::new(Algorithm::ES256, Some("k"));
    let provider = Provider::start(Answer::Body(key_set(&[&es]))).await;
    let config = AuthConfig { jwks_url: Some(provider.url.clone()), ..AuthConfig::default() };
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("x".repeat(30_000));
    assert!(refused(&config, &es.sign_with(&header, &claims(json!({})))).await.contains("kid"));
    header.kid = Some("x".repeat(1_000_000));
    assert!(refused(&config, &es.sign_with(&header, &claims(json!({})))).await.contains("bytes"));
    assert_eq!(provider.hits(), 0);
}

#[tokio::test]
async fn critical_extensions_are_refused() {
    let mut header = Header::new(Algorithm::HS256);
    header.crit = Some(vec!["b64".into()]);
    assert!(refused(&hs256(), &signer().sign_with(&header, &claims(json!({})))).await.contains("crit"));
}

#[tokio::test]
async fn malformed_policies_scopes_and_subjects_are_refused_and_named() {
    for (more, named) in [
        (json!({"scopes": [1]}), "scopes"),
        (json!({"scopes": ["publish:a b"]}), "\"publish:a b\""),
        (json!({"policy": []}), "policy"),
        (json!({"policy": {"rules": [{"effect": "allow", "action": "publish", "topics": ["a*"]}]}}), "policy.rules[0]"),
        (json!({"sub": 1}), "sub"),
    ] {
        let msg = refused(&hs256(), &signer().sign(&claims(more))).await;
        assert!(msg.contains(named), "{msg} should name {named}");
    }
}

#[tokio::test]
async fn text_that_is_no_token_is_refused() {
    for text in ["x", "..", "a.b.c", "a.b", "a.b.c.d", "\0", "é.é.é", "eyJhbGciOiJIUzI1NiJ9.e30.", " "] {
        refused(&hs256(), text).await;
    }
    let good = signer().sign(&claims(json!({})));
    refused(&hs256(), &good[..good.len() - 2]).await;
    refused(&hs256(), &format!("{good}AA")).await;
    refused(&hs256(), &format!(" {good}")).await;
}

#[tokio::test]
async fn with_the_provider_down_jwts_are_refused_with_the_reason_and_the_hub_is_not_ready() {
    let config = AuthConfig {
        jwks_url: Some("http://127.0.0.1:1/keys".into()),
        static_token: Some(Secret::new("static")),
        ..AuthConfig::default()
    };
    let auth = authenticator(&config);
    assert!(auth.ready().is_err());
    assert!(auth.authenticate(Some("static")).await.is_ok(), "the static token works on");
    let token = Signer::new(Algorithm::ES256, Some("k")).sign(&claims(json!({})));
    let refusal = auth.authenticate(Some(&token)).await.expect_err("no keys");
    assert_eq!(refusal.code, Code::JwtInvalid);
    assert!(refusal.msg.contains("cannot connect"), "{}", refusal.msg);
    assert!(auth.ready().expect_err("not ready").contains("cannot connect"));
    assert_eq!(authenticator(&hs256()).ready(), Ok(()));
}

#[test]
fn a_bad_configuration_names_the_setting() {
    let url = AuthConfig { jwks_url: Some("http://idp.example/keys".into()), ..AuthConfig::default() };
    assert_eq!(Authenticator::new(&url).expect_err("not https").setting, "jwt_jwks_url");
    let scopes = AuthConfig { default_scopes: vec!["read:a".into()], ..hs256() };
    assert_eq!(Authenticator::new(&scopes).expect_err("no such action").setting, "default_scopes");
}

#[tokio::test]
async fn secrets_and_tokens_never_show() {
    let config = AuthConfig {
        static_token: Some(Secret::new("canary-token")),
        jwt_secret: Some(Secret::new("canary-secret")),
        ..AuthConfig::default()
    };
    let auth = authenticator(&config);
    let shown = format!("{config:?} {auth:?}");
    assert!(!shown.contains("canary"), "{shown}");
    for token in ["canary-guess", "canary.canary.canary", "eyJhbGciOiJjYW5hcnkifQ.canary.canary"] {
        let refusal = auth.authenticate(Some(token)).await.expect_err("refused");
        assert!(!format!("{refusal:?} {refusal}").contains("canary"), "{refusal:?}");
    }
}

proptest::proptest! {
    /// Whatever is sent as a token is refused and never panics: text, and signed tokens with one byte changed.
    #[test]
    fn any_text_is_refused_without_a_panic(text in ".{1,200}", at in 0usize..200, byte in b'!'..b'~') {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let auth = authenticator(&hs256());
        proptest::prop_assert!(runtime.block_on(auth.authenticate(Some(&text))).is_err());
        let good = signer().sign(&claims(json!({"scopes": []})));
        let mut changed = good.clone().into_bytes();
        let at = at % changed.len();
        changed[at] = byte;
        let changed = String::from_utf8(changed).expect("still ASCII");
        let accepted = runtime.block_on(auth.authenticate(Some(&changed))).is_ok();
        proptest::prop_assert!(!accepted || changed == good);
    }
}
