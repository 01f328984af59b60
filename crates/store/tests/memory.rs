//! The memory engine under the law.

use std::sync::Arc;

use promethean_store::memory::Memory;
use promethean_store::suite::Place;
use promethean_store::{Pending, Store};

struct InMemory;

impl Place for InMemory {
    fn open(&self) -> Pending<'_, Arc<dyn Store>> {
        Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn Store>) })
    }
}

promethean_store::suite!(|| Box::new(InMemory));
