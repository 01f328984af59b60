//! The words of a panic.

use std::any::Any;

/// Returns the message of a panic, from what `catch_unwind` caught.
#[must_use]
pub fn panic_text(caught: &(dyn Any + Send)) -> String {
    let text = caught.downcast_ref::<&str>().copied().or_else(|| caught.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("it says no more"))
}
