//! What a process that died was about to write.
//!
//! A transaction that nobody finishes keeps others from its topic until MongoDB gives it up, after a minute. Every
//! process has a name of its own on its connections (`appName`), by which the next one finds its transactions and ends
//! them. One that lives after all finds them ended, and writes them again.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;

use super::Shared;
use super::fault::within;

/// How long each of the two requests may take.
const REQUEST: Duration = Duration::from_secs(2);

impl Shared {
    /// Ends the transactions of the process that called itself `app`. Needs no right where that was the same user.
    pub(super) async fn end_transactions(&self, app: &str) -> mongodb::error::Result<()> {
        let admin = self.client.database("admin");
        let look = admin.aggregate(vec![
            doc! { "$currentOp": { "allUsers": false, "idleSessions": true } },
            doc! { "$match": { "appName": app, "transaction": { "$exists": true } } },
            doc! { "$project": { "lsid": 1 } },
        ]);
        let look = look.read_concern(ReadConcern::local());
        let found: Vec<Document> = within(REQUEST, async { look.await?.try_collect().await }).await?;
        let sessions: Vec<Document> = found
            .iter()
            .filter_map(|one| one.get_document("lsid").ok()?.get("id").map(|id| doc! { "id": id.clone() }))
            .collect();
        if sessions.is_empty() {
            return Ok(());
        }
        tracing::info!(app, count = sessions.len(), "ending what a dead process was about to write");
        within(REQUEST, admin.run_command(doc! { "killSessions": sessions })).await.map(drop)
    }
}
