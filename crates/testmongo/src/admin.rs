//! Commands to one member, run to their end on a thread of their own, so that tests may call from any runtime.

use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::Document;
use mongodb::options::{ClientOptions, Credential, ServerAddress};

/// How long a server may take for what it is asked.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a future of the driver to its end.
pub(crate) fn block<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(future)
        });
        running.join().expect("no panic")
    })
}

/// A command to the member on `port`, not to its set.
pub(crate) fn command(
    port: u16,
    credential: Option<&Credential>,
    command: Document,
) -> Result<Document, mongodb::error::Error> {
    block(async {
        let options = ClientOptions::builder()
            .hosts(vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(port) }])
            .direct_connection(true)
            .credential(credential.cloned())
            .server_selection_timeout(Duration::from_secs(2))
            .connect_timeout(Duration::from_secs(2))
            .build();
        Client::with_options(options)?.database("admin").run_command(command).await
    })
}

/// Asks again and again until there is an answer.
///
/// # Panics
/// When there is none in time, with what was tried last.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{what} in {PATIENCE:?}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
