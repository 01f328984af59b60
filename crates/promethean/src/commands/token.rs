//! `promethean token`: a JWT for development, in the hub's own words.

use std::collections::BTreeMap;
use std::time::Duration;

use jsonwebtoken::{EncodingKey, Header};
use promethean_event::Millis;
use promethean_gateway::auth::Policy;
use serde_json::{Map, Value, json};

use super::out;
use crate::args::TokenArgs;
use crate::commands::find_file;
use crate::config::{Layers, duration};
use crate::exit::Failure;

pub(crate) fn run(args: TokenArgs) -> Result<(), Failure> {
    let file = find_file(args.config.as_deref())?;
    let layers = Layers::collect(&BTreeMap::new(), &|name| std::env::var_os(name), file.as_ref())?;
    let configured = |name| layers.get(name).map(|said| said.text.clone()).filter(|text| !text.is_empty());
    let secret = args.secret.or_else(|| configured("jwt_secret")).filter(|secret| !secret.is_empty());
    let secret = secret.ok_or_else(|| Failure::usage("no secret to sign with: set JWT_SECRET or give --secret"))?;
    let ttl = duration(&args.ttl).map_err(|reason| Failure::usage(format!("--ttl: {reason}")))?;
    if ttl < Duration::from_secs(1) {
        return Err(Failure::usage("--ttl: such a token has expired already; give it a second at least"));
    }

    let now = Millis::now();
    let mut claims = Map::new();
    claims.insert("sub".into(), json!(args.sub));
    claims.insert("iat".into(), json!(now.0 / 1000));
    claims.insert("exp".into(), json!((now + ttl).0 / 1000));
    if let Some(aud) = args.aud.or_else(|| configured("jwt_aud")) {
        claims.insert("aud".into(), json!(aud));
    }
    if let Some(iss) = args.iss.or_else(|| configured("jwt_iss")) {
        claims.insert("iss".into(), json!(iss));
    }
    match args.policy {
        Some(path) => {
            let at = |reason: String| Failure::usage(format!("{}: {reason}", path.display()));
            let text = std::fs::read_to_string(&path).map_err(|error| at(error.to_string()))?;
            Policy::parse(&text).map_err(|malformed| at(malformed.to_string()))?;
            let policy: Value = serde_json::from_str(&text).map_err(|error| at(error.to_string()))?;
            claims.insert("policy".into(), policy);
        }
        None => {
            for scope in &args.scope {
                if !scope.contains(':') {
                    let remedy = format!("write {scope}:** for every topic, or {scope}:orders.* for some");
                    return Err(Failure::usage(format!("--scope {scope:?} has no topic pattern; {remedy}")));
                }
            }
            Policy::from_scopes(&args.scope).map_err(|malformed| Failure::usage(format!("--scope: {malformed}")))?;
            if args.scope.is_empty() {
                out::done("without --scope or --policy the token allows nothing (unless default_scopes does)");
            } else {
                claims.insert("scopes".into(), json!(args.scope));
            }
        }
    }
    let key = EncodingKey::from_secret(secret.as_bytes());
    let token = jsonwebtoken::encode(&Header::default(), &claims, &key).map_err(Failure::failed)?;
    out::line(&token)?;
    out::hint("promethean context set NAME --server URL --token TOKEN keeps it for every command");
    Ok(())
}
