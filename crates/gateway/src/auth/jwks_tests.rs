//! The key cache against a provider that is up, down, slow, huge, or lies.

use jsonwebtoken::Algorithm;

use super::super::testing::{Answer, Provider, Signer, key_set};
use super::*;

fn jwks(provider: &Provider, timing: Timing) -> Arc<Jwks> {
    Arc::new(Jwks::with_timing(&provider.url, timing).expect("loopback is fine"))
}

async fn provider_of(signers: &[&Signer]) -> Provider {
    Provider::start(Answer::Body(key_set(signers))).await
}

#[tokio::test]
async fn keys_are_fetched_once_and_then_cached() {
    let signer = Signer::new(Algorithm::ES256, Some("k1"));
    let provider = provider_of(&[&signer]).await;
    let jwks = jwks(&provider, TIMING);
    assert!(jwks.ready().is_err());
    for _ in 0..10 {
        assert_eq!(jwks.keys(Some("k1"), Algorithm::ES256).await.expect("a key").len(), 1);
    }
    assert_eq!((provider.hits(), jwks.ready()), (1, Ok(())));
}

#[tokio::test]
async fn many_at_once_wait_for_one_fetch() {
    let signer = Signer::new(Algorithm::ES256, Some("k1"));
    let provider = provider_of(&[&signer]).await;
    let jwks = jwks(&provider, TIMING);
    let all: Vec<_> = (0..50)
        .map(|_| {
            let jwks = Arc::clone(&jwks);
            tokio::spawn(async move { jwks.keys(Some("k1"), Algorithm::ES256).await })
        })
        .collect();
    for one in all {
        assert_eq!(one.await.expect("no panic").expect("a key").len(), 1);
    }
    assert_eq!(provider.hits(), 1);
}

#[tokio::test]
async fn a_rotated_key_is_found_at_once_and_made_up_ones_fetch_only_once_in_a_while() {
    let (old, new) = (Signer::new(Algorithm::ES256, Some("old")), Signer::new(Algorithm::ES256, Some("new")));
    let provider = provider_of(&[&old]).await;
    let jwks = jwks(&provider, TIMING);
    jwks.keys(Some("old"), Algorithm::ES256).await.expect("the old key");
    provider.now_answer(Answer::Body(key_set(&[&old, &new])));
    jwks.keys(Some("new"), Algorithm::ES256).await.expect("the new key, right after the first fetch");
    assert_eq!(provider.hits(), 2);
    for n in 0..20 {
        let refused = jwks.keys(Some(&format!("made-up-{n}")), Algorithm::ES256).await.expect_err("no such key");
        assert!(refused.contains("kid"), "{refused}");
    }
    assert_eq!(provider.hits(), 2, "within 30 s of the last fetch for an unknown kid");
}

#[tokio::test]
async fn an_unknown_kid_may_fetch_again_after_the_pause() {
    let signer = Signer::new(Algorithm::ES256, Some("k1"));
    let provider = provider_of(&[&signer]).await;
    let jwks = jwks(&provider, Timing { unknown_kid: Duration::from_millis(50), ..TIMING });
    jwks.keys(Some("k1"), Algorithm::ES256).await.expect("a key");
    for expected in [2, 3] {
        assert!(jwks.keys(Some("other"), Algorithm::ES256).await.is_err());
        assert_eq!(provider.hits(), expected);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
}

#[tokio::test]
async fn old_keys_go_on_counting_when_a_fetch_fails() {
    let signer = Signer::new(Algorithm::ES256, Some("k1"));
    let provider = provider_of(&[&signer]).await;
    let jwks = jwks(&provider, TIMING);
    jwks.keys(Some("k1"), Algorithm::ES256).await.expect("a key");
    for broken in [Answer::Raw("HTTP/1.1 500 No\r\n\r\n".into()), Answer::Body("{}".into()), Answer::Raw("?".into())] {
        provider.now_answer(broken);
        Jwks::refresh(&jwks, false).await;
        assert_eq!(jwks.keys(Some("k1"), Algorithm::ES256).await.expect("the old key").len(), 1);
        assert_eq!(jwks.ready(), Ok(()));
    }
    assert_eq!(provider.hits(), 4);
}

#[tokio::test]
async fn a_provider_that_fails_is_named_and_tried_again() {
    let signer = Signer::new(Algorithm::ES256, Some("k1"));
    let provider = Provider::start(Answer::Never).await;
    let redirect = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let chunked = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n80000\r\n{}", "x".repeat(0x80000));
    let jwks = jwks(&provider, Timing { empty: Duration::ZERO, fetch: Duration::from_millis(500), ..TIMING });
    for (answer, why) in [
        (Answer::Never, "no answer within"),
        (Answer::Raw(redirect.into()), "redirects are not followed"),
        (Answer::Raw("HTTP/1.1 503 Busy\r\n\r\n".into()), "503"),
        (Answer::Body("x".repeat(300 * 1024)), "larger than"),
        (Answer::Raw(chunked), "larger than"),
        (Answer::Body("<html>".into()), "not a JSON Web Key Set"),
        (Answer::Body(r#"{"keys":[]}"#.into()), "no key that can verify"),
    ] {
        provider.now_answer(answer);
        let refused = jwks.keys(Some("k1"), Algorithm::ES256).await.expect_err(why);
        assert!(refused.contains(why), "{refused} should say {why}");
        assert!(jwks.ready().expect_err("not ready").contains(why));
    }
    provider.now_answer(Answer::Body(key_set(&[&signer])));
    assert!(jwks.keys(Some("k1"), Algorithm::ES256).await.is_ok(), "up again");
}

#[tokio::test]
async fn nobody_listening_is_not_ready_with_the_reason() {
    let jwks = Arc::new(Jwks::new("http://127.0.0.1:1/keys").expect("loopback"));
    let refused = jwks.keys(None, Algorithm::RS256).await.expect_err("nobody there");
    assert!(refused.contains("cannot connect to 127.0.0.1:1"), "{refused}");
    assert_eq!(jwks.ready(), Err(refused));
}

#[tokio::test]
async fn run_loads_the_keys_and_ends_with_the_last_user() {
    let signer = Signer::new(Algorithm::EdDSA, None);
    let provider = provider_of(&[&signer]).await;
    let jwks = jwks(&provider, Timing { renew: Duration::from_millis(10), ..TIMING });
    let running = tokio::spawn(Jwks::run(Arc::downgrade(&jwks)));
    tokio::time::timeout(Duration::from_secs(10), async {
        while provider.hits() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("fetched again and again");
    assert_eq!(jwks.ready(), Ok(()));
    drop(jwks);
    tokio::time::timeout(Duration::from_secs(10), running).await.expect("ends").expect("no panic");
}

#[test]
fn keys_that_cannot_verify_are_left_out() {
    let good = Signer::new(Algorithm::ES256, Some("good")).jwk();
    let mut for_encryption = good.clone();
    for_encryption["use"] = "enc".into();
    let mut other_curve = good.clone();
    other_curve["crv"] = "P-521".into();
    let secret = serde_json::json!({"kty": "oct", "k": "c2VjcmV0", "kid": "secret"});
    let set = serde_json::json!({"keys": [for_encryption, other_curve, secret, 1, "x", {"kty": "new"}, good]});
    let keys = parse(set.to_string().as_bytes()).expect("one is good");
    assert_eq!(keys.iter().map(|key| key.kid.as_deref()).collect::<Vec<_>>(), [Some("good")]);
}

#[test]
fn a_key_fits_its_own_algorithms_only() {
    use Algorithm::{ES256, ES384, EdDSA, HS256, PS256, RS256, RS512};
    for (made_for, fits) in [(RS256, vec![RS256]), (ES256, vec![ES256]), (ES384, vec![ES384]), (EdDSA, vec![EdDSA])] {
        let json = key_set(&[&Signer::new(made_for, Some("k"))]);
        let keys = parse(json.as_bytes()).expect("a key");
        for algorithm in [ES256, ES384, EdDSA, HS256, PS256, RS256, RS512] {
            assert_eq!(keys[0].fits(Some("k"), algorithm), fits.contains(&algorithm), "{made_for:?} for {algorithm:?}");
            assert!(!keys[0].fits(Some("K"), algorithm));
        }
    }
    let mut any_rsa = Signer::new(RS256, None).jwk();
    any_rsa.as_object_mut().expect("an object").remove("alg");
    let keys = parse(serde_json::json!({"keys": [any_rsa]}).to_string().as_bytes()).expect("a key");
    assert!(keys[0].fits(None, RS512) && keys[0].fits(None, PS256) && !keys[0].fits(None, HS256));
}
