//! Standard output behind a thread of its own: a reader that is slow or gone holds up nothing else, and signals are heard.

use std::io::{self, Write};
use std::sync::mpsc;

use tokio::sync::oneshot;

enum Job {
    Text(Vec<u8>),
    Flush(oneshot::Sender<io::Result<()>>),
}

/// The way to the thread that writes. Without a reader the rest is discarded.
pub(super) struct Output(mpsc::Sender<Job>);

impl Output {
    pub(super) fn start() -> Self {
        let (jobs, inbox) = mpsc::channel();
        // Not joined: it may wait for a reader that takes nothing any more.
        std::thread::spawn(move || write(&inbox, &mut io::stdout().lock()));
        Self(jobs)
    }

    /// Queues text to be written.
    pub(super) fn write(&self, text: Vec<u8>) {
        let _ = self.0.send(Job::Text(text));
    }

    /// Resolves when everything so far is written.
    ///
    /// # Errors
    /// The first that writing had, for good.
    pub(super) async fn written(&self) -> io::Result<()> {
        let (done, written) = oneshot::channel();
        let _ = self.0.send(Job::Flush(done));
        written.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

fn write(inbox: &mpsc::Receiver<Job>, out: &mut impl Write) {
    let mut failed: Option<io::Error> = None;
    while let Ok(job) = inbox.recv() {
        let result = match (&failed, &job) {
            (None, Job::Text(text)) => out.write_all(text),
            (None, Job::Flush(_)) => out.flush(),
            (Some(_), _) => Ok(()),
        };
        failed = failed.or(result.err());
        if let Job::Flush(done) = job {
            // An io::Error has no copy.
            let again = failed.as_ref().map(|error| io::Error::new(error.kind(), error.to_string()));
            let _ = done.send(again.map_or(Ok(()), Err));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the first line only.
    struct Head(Vec<u8>);

    impl Write for Head {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            if self.0.contains(&b'\n') {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0.extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_reader_that_is_gone_is_told_at_each_flush_and_the_rest_is_discarded() {
        let (jobs, inbox) = mpsc::channel();
        let (output, mut head) = (Output(jobs), Head(Vec::new()));
        let writer = std::thread::spawn(move || {
            write(&inbox, &mut head);
            head.0
        });
        output.write(b"1\n".to_vec());
        output.written().await.expect("written");
        output.write(b"2\n".to_vec());
        for _ in 0..2 {
            assert_eq!(output.written().await.expect_err("gone").kind(), io::ErrorKind::BrokenPipe);
        }
        drop(output);
        assert_eq!(writer.join().expect("ended"), b"1\n");
    }
}
