//! Which web pages may connect: a browser sends its page's origin and cannot lie about it.
//!
//! Without this check any page in a user's browser could speak to a hub on that user's machine or network.

use http::{HeaderMap, header};

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// True if the request's origin may connect. Requests without one do not come from a web page.
///
/// With `open` (no auth) a page of "the hub's own host" must be at loopback or an IP address: a name could be an
/// attacker's that was pointed at this machine, and no token would stop it.
pub(crate) fn is_allowed(headers: &HeaderMap, allowed: &[String], open: bool) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let Ok(origin) = origin.to_str() else { return false };
    let plain = |text: &str| text.trim_end_matches('/').to_ascii_lowercase();
    if allowed.iter().any(|one| plain(one) == plain(origin)) {
        return true;
    }
    let Some(host) = origin.split_once("://").map(|(_, rest)| host_of(rest)) else { return false };
    if is_loopback(&host) {
        return true;
    }
    let own = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(host_of);
    own.is_some_and(|own| own == host) && (!open || host.parse::<std::net::IpAddr>().is_ok())
}

/// True if the name under which the hub was asked could be anybody's, pointed at this machine to make a browser take
/// what the hub says for that page's own (DNS rebinding). Matters where no token is needed: a page on the same name
/// sends no origin with what it reads.
pub(crate) fn is_foreign_host(headers: &HeaderMap, allowed: &[String]) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(host_of) else { return false };
    // A name without a dot is no name of the Internet.
    let public = host.contains('.') && host.parse::<std::net::IpAddr>().is_err() && !is_loopback(&host);
    let listed = |one: &String| one.split_once("://").is_some_and(|(_, rest)| host_of(rest) == host);
    public && !allowed.iter().any(listed)
}

/// True if a browser sent the request for a page of another site and the page's origin is not allowed. Such a page makes
/// requests without `Origin` (`<img src=…>`): it cannot read the answers, but the hub would do the work.
pub(crate) fn is_cross_site(headers: &HeaderMap, allowed: &[String]) -> bool {
    let cross = headers.get_all(SEC_FETCH_SITE).into_iter().any(|site| site.as_bytes() == b"cross-site");
    cross && !(headers.contains_key(header::ORIGIN) && is_allowed(headers, allowed, true))
}

/// The host of `host[:port]`, without brackets, in lower case.
fn host_of(authority: &str) -> String {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split([':', '/']).next().unwrap_or_default(),
    };
    host.to_ascii_lowercase()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(origin: &str, host: &str, list: &[&str], open: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, origin.parse().expect("a header"));
        headers.insert(header::HOST, host.parse().expect("a header"));
        let list: Vec<String> = list.iter().map(|&one| one.to_owned()).collect();
        is_allowed(&headers, &list, open)
    }

    #[test]
    fn a_page_of_the_hub_itself_of_loopback_or_of_the_list_may_connect() {
        assert!(is_allowed(&HeaderMap::new(), &[], true), "not a browser");
        assert!(allowed("https://hub.example", "hub.example:8090", &[], false));
        assert!(allowed("https://hub.example:8082", "Hub.Example:8090", &[], false));
        assert!(allowed("http://10.0.0.5:8082", "10.0.0.5:8090", &[], true));
        assert!(allowed("http://[::1]:3000", "hub.example", &[], false));
        assert!(allowed("http://localhost:3000", "127.0.0.1:8090", &[], true));
        assert!(allowed("http://127.0.0.1", "hub.example", &[], false));
        assert!(allowed("https://app.example", "hub.example", &["https://App.example/"], false));
    }

    #[test]
    fn a_public_name_for_this_machine_is_foreign_unless_it_is_listed() {
        let foreign = |host: &str, list: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a header"));
            is_foreign_host(&headers, &list.iter().map(|&one| one.to_owned()).collect::<Vec<_>>())
        };
        for own in ["127.0.0.1:8081", "localhost:8081", "[::1]:8081", "10.0.0.5", "hub", "hub.localhost:1"] {
            assert!(!foreign(own, &[]), "{own}");
        }
        assert!(foreign("rebound.example:8081", &[]) && foreign("rebound.example", &["https://app.example"]));
        assert!(!foreign("Hub.Example:8081", &["https://hub.example"]));
        assert!(!is_foreign_host(&HeaderMap::new(), &[]));
    }

    #[test]
    fn a_cross_site_request_needs_an_origin_that_is_allowed() {
        let cross = |site: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(SEC_FETCH_SITE, site.parse().expect("a header"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().expect("a header"));
            }
            is_cross_site(&headers, &["https://app.example".to_owned()])
        };
        assert!(cross("cross-site", None) && cross("cross-site", Some("https://evil.example")));
        assert!(!cross("cross-site", Some("https://app.example")) && !cross("cross-site", Some("http://localhost:1")));
        assert!(!cross("same-site", None) && !cross("same-origin", None) && !cross("none", None));
        assert!(!is_cross_site(&HeaderMap::new(), &[]));
    }

    #[test]
    fn a_page_of_another_site_may_not() {
        assert!(!allowed("https://evil.example", "hub.example", &["https://app.example"], false));
        assert!(!allowed("null", "hub.example", &[], false));
        assert!(!allowed("https://hub.example.evil.example", "hub.example", &[], false));
        assert!(!allowed("http://localhost.evil.example", "hub.example", &[], false));
        assert!(!allowed("http://app.example", "hub.example", &["https://app.example"], false));
        assert!(!allowed("http://rebound.example:8090", "rebound.example:8090", &[], true), "DNS rebinding");
    }
}
