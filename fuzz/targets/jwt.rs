//! Any text as a token, also with a valid shape around it: no panic, and never an identity.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use promethean_gateway::auth::{AuthConfig, Authenticator, Policy, Secret};

static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"));

static AUTH: LazyLock<Authenticator> = LazyLock::new(|| {
    let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    let secret = Some(Secret::new("a secret that no input can know, 32 bytes"));
    Authenticator::new(&AuthConfig { jwt_secret: secret, ..AuthConfig::default() }).expect("a configuration")
});

fuzz_target!(|text: &str| {
    let refused = RUNTIME.block_on(AUTH.authenticate(Some(text))).expect_err("nobody signed this");
    assert!(!refused.msg.is_empty());
    let _ = Policy::parse(text);
    let _ = Policy::from_scopes(&[text]);
});
