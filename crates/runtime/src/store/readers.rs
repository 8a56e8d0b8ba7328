//! Read-only connections, taken from a small pool.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use super::StoreError;

/// Queries that run at once; more wait.
const MAX_READERS: usize = 8;

#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    permits: Semaphore,
    /// Held only to push and pop: no query runs under it.
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            permits: Semaphore::new(MAX_READERS),
            idle: Mutex::new(Vec::new()),
        }
    }

    pub(super) async fn read<T, E>(
        self: &std::sync::Arc<Self>,
        query: impl FnOnce(&Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let _permit = self
            .permits
            .acquire()
            .await
            .map_err(|_| StoreError::Closed)?;
        let this = self.clone();
        tokio::task::spawn_blocking(move || {
            let connection = this.take()?;
            let outcome = query(&connection);
            this.give_back(connection);
            outcome
        })
        .await
        .map_err(|_| StoreError::Closed)?
    }

    fn take(&self) -> Result<Connection, StoreError> {
        let idle = self.idle.lock().map_err(|_| StoreError::Closed)?.pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let connection = Connection::open_with_flags(
            &self.path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        Ok(connection)
    }

    fn give_back(&self, connection: Connection) {
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(connection);
        }
    }
}
