//! Which hub a command talks to, and as whom.
//!
//! `--server` over the variable of the port (`PROMETHEAN_SERVER`, `PROMETHEAN_HTTP`, `PROMETHEAN_OPS`) over
//! `PROMETHEAN_URL` over the saved context over this machine. The ops port answers everything (WebSocket, HTTP, ops), so
//! one address of it is enough for every command; `ws` and `http` in it mean the same.

use super::context::{self, Context};
use crate::args::At;
use crate::exit::Failure;

/// The remedy where a hub does not know who asks.
pub(super) const GIVE_A_TOKEN: &str = "give a token with --token, PROMETHEAN_TOKEN or promethean context set";
/// The remedy where nobody answers.
pub(super) const START_ONE: &str = "start a hub with `promethean serve`, or name another with --server";
/// The remedy where somebody answers who does not know what is asked for.
pub(super) const NAME_OPS: &str = "name the hub's ops address (8082), which answers everything";
/// The remedy where a hub's certificate is none that this machine trusts.
pub(super) const TRUST_IT: &str =
    "for a private authority name its certificate's file in SSL_CERT_FILE, and the hub as its certificate does";

/// True if a connection failed for the hub's certificate, by what rustls says of it.
pub(super) fn is_untrusted(reason: &str) -> bool {
    reason.contains("invalid peer certificate")
}

/// What a command needs of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Ws,
    Http,
    Ops,
}

impl Port {
    const fn variable(self) -> &'static str {
        match self {
            Port::Ws => "PROMETHEAN_SERVER",
            Port::Http => "PROMETHEAN_HTTP",
            Port::Ops => "PROMETHEAN_OPS",
        }
    }

    const fn default(self) -> &'static str {
        match self {
            Port::Ws => "ws://127.0.0.1:8090",
            Port::Http => "http://127.0.0.1:8081",
            Port::Ops => "http://127.0.0.1:8082",
        }
    }
}

/// A hub, found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The address, with the scheme that the port speaks.
    pub(crate) server: String,
    pub(crate) token: Option<String>,
    /// Where the address was said.
    pub(crate) origin: String,
}

/// Where the hub is that `at` means.
pub(crate) fn resolve(at: &At, port: Port) -> Result<Target, Failure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let saved = match (&at.server, &at.context) {
        (Some(_), None) => None,
        (_, named) => context::chosen(named.as_deref().or(variable("PROMETHEAN_CONTEXT").as_deref()))?,
    };
    decide(at, port, &variable, saved)
}

fn decide(
    at: &At,
    port: Port,
    variable: &dyn Fn(&str) -> Option<String>,
    saved: Option<(String, Context)>,
) -> Result<Target, Failure> {
    // A context that was asked for by name outranks the environment.
    let by_name = at.context.is_some();
    let of_context = saved.as_ref().map(|(name, context)| (context.server.clone(), format!("context {name}")));
    let of_variable = [port.variable(), "PROMETHEAN_URL"];
    let of_variable = of_variable.iter().find_map(|name| Some((variable(name)?, format!("${name}"))));
    let found = match (&at.server, by_name) {
        (Some(server), _) => Some((server.clone(), "--server".to_owned())),
        (None, true) => of_context,
        (None, false) => of_variable.or(of_context),
    };
    let (server, origin) = found.unwrap_or_else(|| (port.default().to_owned(), "default".to_owned()));
    let server = with_scheme(&server, port).map_err(|reason| Failure::usage(format!("{origin}: {reason}")))?;
    // A saved token is for the saved address: it is not sent anywhere else.
    let saved_token = saved.filter(|_| origin.starts_with("context ")).and_then(|(_, context)| context.token);
    Ok(Target { server, token: at.token.clone().or(saved_token), origin })
}

/// `ws` and `http`, `wss` and `https` name the same hub: the scheme that `port` speaks.
fn with_scheme(text: &str, port: Port) -> Result<String, String> {
    let wrong = || format!("{text:?} must begin with http://, https://, ws:// or wss://");
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let scheme = match (scheme, port) {
        ("ws" | "http", Port::Ws) => "ws",
        ("wss" | "https", Port::Ws) => "wss",
        ("ws" | "http", _) => "http",
        ("wss" | "https", _) => "https",
        _ => return Err(wrong()),
    };
    Ok(format!("{scheme}://{rest}"))
}

/// A hub's HTTP, taken apart.
#[derive(Debug)]
pub(super) struct Url {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(format!("{text:?} must begin with http:// or https://")),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
            }
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() { Err("names no host".into()) } else { Ok(Self { tls, host, port }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(
        server: Option<&str>,
        context: Option<&str>,
        variables: &[(&str, &str)],
        port: Port,
    ) -> (String, String) {
        let at = At { server: server.map(str::to_owned), context: context.map(str::to_owned), token: None };
        let variable =
            |name: &str| variables.iter().find(|(this, _)| *this == name).map(|(_, value)| (*value).to_owned());
        let saved = Context { server: "https://saved:1".into(), token: Some("secret".into()) };
        let target = decide(&at, port, &variable, Some(("prod".into(), saved))).expect("good addresses");
        assert_eq!(target.token.is_some(), target.origin == "context prod", "a saved token goes nowhere else");
        (target.server, target.origin)
    }

    #[test]
    fn an_address_comes_from_the_nearest_place_that_says_one() {
        let both = [("PROMETHEAN_URL", "http://url:1"), ("PROMETHEAN_SERVER", "ws://ws:1")];
        let expect = |server: &str, origin: &str| (server.to_owned(), origin.to_owned());
        assert_eq!(decided(Some("http://flag:1"), None, &both, Port::Ws), expect("ws://flag:1", "--server"));
        assert_eq!(decided(None, None, &both, Port::Ws), expect("ws://ws:1", "$PROMETHEAN_SERVER"));
        assert_eq!(decided(None, None, &both, Port::Ops), expect("http://url:1", "$PROMETHEAN_URL"));
        assert_eq!(decided(None, Some("prod"), &both, Port::Ops), expect("https://saved:1", "context prod"));
        assert_eq!(decided(None, None, &[], Port::Ws), expect("wss://saved:1", "context prod"));
        let at = At { server: None, context: None, token: None };
        let nothing = decide(&at, Port::Ops, &|_| None, None).expect("a default");
        assert_eq!((nothing.server.as_str(), nothing.origin.as_str()), ("http://127.0.0.1:8082", "default"));
    }

    #[test]
    fn an_address_without_a_scheme_is_refused_with_its_origin() {
        let at = At { server: Some("hub:8082".into()), context: None, token: None };
        let refused = decide(&at, Port::Ops, &|_| None, None).expect_err("no scheme").to_string();
        assert!(refused.contains("--server") && refused.contains("http://"), "{refused}");
    }

    #[test]
    fn addresses_are_read_with_and_without_ports() {
        for (text, tls, host, port) in [
            ("http://127.0.0.1:8081", false, "127.0.0.1", 8081),
            ("https://hub.example/x", true, "hub.example", 443),
            ("http://[::1]:9/", false, "::1", 9),
            ("http://[::1]", false, "::1", 80),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!((url.tls, url.host.as_str(), url.port), (tls, host, port), "{text}");
        }
        for bad in ["hub:8081", "ws://hub", "http://", "http://hub:port"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
