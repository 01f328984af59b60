//! The transactional outbox: the business write and the event commit together.
