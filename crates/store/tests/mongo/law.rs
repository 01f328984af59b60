//! The law of every engine.

use std::sync::Arc;

use promethean_store::mongo::{Mongo, Options};
use promethean_store::suite::Place;
use promethean_store::{Error, Pending, Store};
use promethean_testmongo::Scratch;

struct Database(Scratch);

impl Place for Database {
    fn open(&self) -> Pending<'_, Arc<dyn Store>> {
        Box::pin(async {
            let options = Options { maintenance: None, ..Options::new(self.0.url()) };
            let mongo = Mongo::open(options).await.map_err(|error| Error::Refused(error.to_string()))?;
            Ok(Arc::new(mongo) as Arc<dyn Store>)
        })
    }
}

fn place() -> Box<dyn Place> {
    Box::new(Database(Scratch::new()))
}

promethean_store::suite!(place);
promethean_store::durable_suite!(place);
