//! The embedded engine under the law: with files so small that every case settles, and with the defaults.

use std::sync::Arc;

use promethean_store::log::{Log, Options};
use promethean_store::suite::Place;
use promethean_store::{Error, Pending, Store};

struct Directory {
    dir: tempfile::TempDir,
    change: fn(&mut Options),
}

impl Place for Directory {
    fn open(&self) -> Pending<'_, Arc<dyn Store>> {
        Box::pin(async {
            let mut options = Options::new(self.dir.path().join("data"));
            (self.change)(&mut options);
            let log = Log::open(options).map_err(|error| Error::Damaged(error.to_string()))?;
            Ok(Arc::new(log) as Arc<dyn Store>)
        })
    }
}

fn place(change: fn(&mut Options)) -> Box<dyn Place> {
    Box::new(Directory { dir: tempfile::tempdir().expect("a directory"), change })
}

fn small(options: &mut Options) {
    (options.journal_bytes, options.segment_bytes, options.block_bytes) = (4 << 10, 2 << 10, 512);
}

mod small_files {
    promethean_store::suite!(|| super::place(super::small));
    promethean_store::durable_suite!(|| super::place(super::small));
}

mod small_files_compressed {
    fn packed(options: &mut promethean_store::log::Options) {
        super::small(options);
        options.compress = true;
    }
    promethean_store::suite!(|| super::place(packed));
    promethean_store::durable_suite!(|| super::place(packed));
}

mod defaults {
    promethean_store::suite!(|| super::place(|_| ()));
    promethean_store::durable_suite!(|| super::place(|_| ()));
}

mod synced_at_intervals {
    fn interval(options: &mut promethean_store::log::Options) {
        super::small(options);
        options.sync = "5ms".parse().expect("an interval");
    }
    promethean_store::suite!(|| super::place(interval));
    promethean_store::durable_suite!(|| super::place(interval));
}
