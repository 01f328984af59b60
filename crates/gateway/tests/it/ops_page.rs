//! The page at `/` of the ops port.

use crate::harness::{Served, Setup};
use promethean_gateway::ops::router;

async fn open_hub() -> Served {
    Setup::default().start(router).await
}

#[tokio::test]
async fn the_page_comes_with_a_strict_policy() {
    let hub = open_hub().await;
    let page = hub.get("/").await;
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert_eq!(
        page.header("content-security-policy"),
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    assert_eq!((page.header("x-content-type-options"), page.header("referrer-policy")), ("nosniff", "no-referrer"));
    assert_eq!(page.header("cache-control"), "no-cache");
    // Built in, or a page that says how to build it.
    assert!(page.text().contains("Promethean"), "{}", page.text());
    if !page.text().contains("<script") {
        assert!(page.text().contains("npm run build"), "{}", page.text());
    }
}

#[tokio::test]
async fn the_files_of_the_page_are_served_as_what_they_are() {
    let hub = open_hub().await;
    let page = hub.get("/").await;
    let assets: Vec<&str> = page.text().split('"').filter(|part| part.starts_with("./assets/")).collect();
    for asset in &assets {
        let file = hub.get(&asset[1..]).await;
        assert_eq!(file.status, 200, "{asset}");
        assert_eq!(file.header("cache-control"), "public, max-age=31536000, immutable");
        assert!(file.headers.contains_key("content-security-policy"), "{asset}");
    }
    let sdk = hub.get("/sdk.js").await;
    if sdk.status == 200 {
        assert_eq!(sdk.header("content-type"), "text/javascript; charset=utf-8");
        assert_eq!((sdk.header("access-control-allow-origin"), sdk.header("cache-control")), ("*", "no-cache"));
    } else {
        sdk.refused(404, "not_found");
    }
}

#[tokio::test]
async fn what_is_no_file_of_the_page_is_not_found() {
    let hub = open_hub().await;
    for path in ["/assets/none.js", "/../Cargo.toml", "/%2e%2e/Cargo.toml", "/index", "/assets/", "/demo", "/demo.html"]
    {
        hub.get(path).await.refused(404, "not_found");
    }
    hub.post("/index.html", "").await.refused(404, "not_found");
}
