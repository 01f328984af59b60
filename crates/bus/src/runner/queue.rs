//! The way to a group: a queue of inputs that takes no memory while it is empty.
//!
//! Unbounded by itself; every sender waits for its answer, so the inputs under way are bounded by the number of subscribers
//! and the answers that each may have pending.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Input;

/// Most inputs for which an empty queue keeps its memory.
const KEPT: usize = 16;

/// The sending end.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Queue>);

/// The receiving end. Dropping it drops the inputs, and with them the senders of their answers.
pub(crate) struct Inputs(Arc<Queue>);

struct Queue {
    waiting: Mutex<Waiting>,
    wake: Arc<Notify>,
}

#[derive(Default)]
struct Waiting {
    inputs: VecDeque<Input>,
    closed: bool,
}

/// The group has ended: another one answers.
pub(crate) struct Closed;

/// A queue that wakes its receiver by `wake`.
pub(super) fn queue(wake: Arc<Notify>) -> (Handle, Inputs) {
    let queue = Arc::new(Queue { waiting: Mutex::default(), wake });
    (Handle(Arc::clone(&queue)), Inputs(queue))
}

impl Handle {
    pub(crate) fn send(&self, input: Input) -> Result<(), Closed> {
        let mut waiting = self.0.waiting.lock();
        if waiting.closed {
            return Err(Closed);
        }
        waiting.inputs.push_back(input);
        drop(waiting);
        self.0.wake.notify_one();
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.waiting.lock().closed
    }
}

impl Inputs {
    pub(super) fn next(&mut self) -> Option<Input> {
        let mut waiting = self.0.waiting.lock();
        let input = waiting.inputs.pop_front();
        if waiting.inputs.is_empty() && waiting.inputs.capacity() > KEPT {
            waiting.inputs = VecDeque::new();
        }
        input
    }

    pub(super) fn len(&self) -> usize {
        self.0.waiting.lock().inputs.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes no more inputs. Those that wait are dropped with the receiver.
    pub(super) fn close(&self) {
        self.0.waiting.lock().closed = true;
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        self.close();
        let left = std::mem::take(&mut self.0.waiting.lock().inputs);
        // Without the lock: an answer that is dropped may wake its asker at once.
        drop(left);
    }
}
