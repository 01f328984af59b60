//! What has an event's id: events, deliveries, and whatever points to them.

use std::sync::Arc;

use crate::{Event, EventId};

/// Something that stands for one event. A consumer that must not do a thing twice goes by this id.
pub trait Identified {
    /// The event's id.
    fn event_id(&self) -> EventId;
}

impl Identified for Event {
    fn event_id(&self) -> EventId {
        self.id
    }
}

impl Identified for EventId {
    fn event_id(&self) -> EventId {
        *self
    }
}

impl<T: Identified + ?Sized> Identified for &T {
    fn event_id(&self) -> EventId {
        (**self).event_id()
    }
}

impl<T: Identified + ?Sized> Identified for Arc<T> {
    fn event_id(&self) -> EventId {
        (**self).event_id()
    }
}
