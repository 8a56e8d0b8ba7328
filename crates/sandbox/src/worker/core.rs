//! The worker's own thread.
//!
//! A command passes from the connection to its job and back. On a runtime of many threads each of
//! these steps wakes another thread, which on an idle machine costs more than the step itself; on
//! one thread a command wakes the worker twice, when it comes and when its program ends. Nothing on
//! this thread blocks but the start of a program.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// A runtime of one thread, which is lent to it while it works.
pub(super) struct Core(Option<Runtime>);

impl Core {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(Some(
            Builder::new_current_thread().enable_all().build()?,
        )))
    }

    /// Runs `work` on a thread of the caller's runtime and gives the core back for more.
    pub(super) async fn drive<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<(Self, T)> {
        let driven = tokio::task::spawn_blocking(move || {
            let Some(runtime) = &self.0 else {
                return Err(io::Error::other("the core is gone"));
            };
            // As a task: the future that a runtime blocks on is polled after a look at the system only.
            let done = runtime
                .block_on(runtime.spawn(work))
                .map_err(io::Error::other)?;
            Ok((self, done))
        });
        driven.await.map_err(io::Error::other)?
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Dropped on a thread that may not block, it must not wait for its own threads.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
