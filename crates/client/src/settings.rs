//! How a client connects.

use std::sync::Arc;
use std::time::Duration;

use promethean_event::IdMaker;
use tokio::sync::Semaphore;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue};

use crate::driver::Driver;
use crate::mailbox::Mailbox;
use crate::report::Reporter;
use crate::token::Token;
use crate::window::Window;
use crate::wire::Connected;
use crate::{Client, Error, Link, Report, wire};

/// What a client may be told before it connects.
#[derive(Debug, Clone)]
pub struct Builder {
    settings: Settings,
}

/// The settings of a client.
#[derive(Clone)]
pub(crate) struct Settings {
    /// At least one.
    pub(crate) urls: Vec<String>,
    pub(crate) token: Token,
    pub(crate) name: Option<String>,
    pub(crate) window: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) shortest_wait: Duration,
    pub(crate) longest_wait: Duration,
    pub(crate) silence: Duration,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) reporter: Reporter,
}

impl Settings {
    /// The address of try number `attempt`.
    pub(crate) fn url(&self, attempt: usize) -> &str {
        self.urls.get(attempt % self.urls.len()).map_or("", String::as_str)
    }

    /// Connects to the first address that answers, from number `at` on, each tried once. Returns its number too.
    async fn first(&self, at: usize) -> Result<(usize, Connected), Error> {
        let mut failed = None;
        for attempt in at..at + self.urls.len() {
            match wire::connect(self, attempt).await {
                Ok(connected) => return Ok((attempt, connected)),
                Err(error) if error.is_retryable() => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or(Error::Lost))
    }
}

impl std::fmt::Debug for Settings {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("urls", &self.urls).field("window", &self.window).finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new(url: String) -> Self {
        Self {
            settings: Settings {
                urls: vec![url],
                token: Token::None,
                name: None,
                window: 1_024,
                connect_timeout: Duration::from_secs(10),
                shortest_wait: Duration::from_millis(100),
                longest_wait: Duration::from_secs(10),
                silence: Duration::from_secs(60),
                tls: None,
                headers: Vec::new(),
                reporter: Reporter::default(),
            },
        }
    }

    /// Adds an address of the same hub or of another hub on the same data. After each failure the next one is tried.
    #[must_use]
    pub fn address(mut self, url: impl Into<String>) -> Self {
        self.settings.urls.push(url.into());
        self
    }

    /// Calls `report` with failures that no call waits for. Without it they are written to standard error; lost connections
    /// go to the log then.
    #[must_use]
    pub fn on_error(mut self, report: impl Fn(Report<'_>) + Send + Sync + 'static) -> Self {
        self.settings.reporter = Reporter::new(report);
        self
    }

    /// The token of `AUTH`, sent on every connection. When it has run out and the hub refuses it, the client ends; for
    /// tokens that run out there is [`Builder::token_from`]. `jwt_invalid` from a hub that took a token before may mean
    /// that it has just started and has no signing keys yet: only the tenth in a row ends the client.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.settings.token = Token::Fixed(token.into());
        self
    }

    /// Asks `fetch` for a token on every connection, and again before it runs out, so that the connection stays.
    #[must_use]
    pub fn token_from<F, Fut, E>(mut self, fetch: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, E>> + Send + 'static,
        E: std::fmt::Display,
    {
        self.settings.token = Token::source(fetch);
        self
    }

    /// The publisher's name: `sid` of every event that brings none.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// Most publishes that wait for their confirmation at a time, 1,024 unless said; their payloads have 64 MiB at most, a larger
    /// one goes alone.
    #[must_use]
    pub fn window(mut self, publishes: usize) -> Self {
        self.settings.window = publishes.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// How long one try to connect may take; 10 s unless said.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// The waits between tries to reconnect: from `shortest`, doubling, to `longest`, with jitter; 100 ms and 10 s
    /// unless said.
    #[must_use]
    pub fn backoff(mut self, shortest: Duration, longest: Duration) -> Self {
        (self.settings.shortest_wait, self.settings.longest_wait) = (shortest, longest.max(shortest));
        self
    }

    /// After how long without a sign of life the connection counts as lost; 60 s unless said. The hub pings every 20 s.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.settings.silence = silence;
        self
    }

    /// How `wss://` is verified; the system's certificates unless said.
    #[must_use]
    pub fn tls(mut self, tls: Arc<rustls::ClientConfig>) -> Self {
        self.settings.tls = Some(tls);
        self
    }

    /// A header of the upgrade request.
    ///
    /// # Errors
    /// It is not one that a request may have.
    pub fn header(mut self, name: &'static str, value: &str) -> Result<Self, Error> {
        let wrong = || Error::Connect { url: self.settings.url(0).to_owned(), reason: format!("{name} is no header") };
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        self.settings.headers.push((HeaderName::from_static(name), value));
        Ok(self)
    }

    /// Connects and authenticates, for this one connection.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn link(self) -> Result<Link, Error> {
        Ok(Link::new(self.settings.first(0).await?.1.wire))
    }

    /// Connects and authenticates. From then on the client reconnects by itself.
    ///
    /// # Errors
    /// Nobody answers, or the hub refuses the token. Needs a Tokio runtime.
    pub async fn connect(self) -> Result<Client, Error> {
        let first = self.settings.first(0).await?;
        let (mailbox, inbox, shared) = Mailbox::open(self.settings.reporter.clone());
        let window = Window::new(self.settings.window);
        let name = self.settings.name.clone();
        tokio::spawn(Driver::new(self.settings, inbox, shared).run(first));
        Ok(Client::new(mailbox, window, Arc::new(IdMaker::new()), name))
    }
}
