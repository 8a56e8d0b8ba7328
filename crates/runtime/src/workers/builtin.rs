//! The worker in the daemon's own process, named `local`.
//!
//! It dials the daemon's own port as any other worker does. Its root is `workers/local/root` in
//! the home folder, not the home folder itself or the instances': commands that agents send must
//! not be able to write the database, the certificates or another agent's state. Nor can they where
//! the home folder is in /tmp: their temporary files are in `workers/local/tmp` then.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quintet_sandbox::isolate::{HelperCommand, IsolationConfig, temp_beside};
use quintet_sandbox::proto::{Pulse, Token};
use quintet_sandbox::worker::{StartError, Worker, WorkerConfig};

use crate::config::SandboxConfig;
use crate::home::Home;
use crate::workspaces::WorkspaceCopies;

/// Its name.
pub(crate) const LOCAL: &str = "local";

/// What the binary knows and the built-in worker needs.
#[derive(Debug, Clone)]
pub struct BuiltinWorker {
    /// Arguments that make this very program the isolation helper.
    pub helper_args: Vec<String>,
    /// What its commands see of the daemon's environment.
    pub env: Vec<(OsString, OsString)>,
    /// The user's shell.
    pub shell: Option<PathBuf>,
}

/// Why the built-in worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum BuiltinError {
    /// Its folder can't be made.
    #[error("{}: {source}", path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The worker itself refused.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Where and how it dials.
pub(crate) struct Dial {
    pub(crate) address: SocketAddr,
    pub(crate) tls: bool,
    pub(crate) token: Token,
}

impl Dial {
    /// An address that listens everywhere is dialled over loopback.
    fn url(&self) -> String {
        let ip = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let scheme = if self.tls { "wss" } else { "ws" };
        let address = SocketAddr::new(ip, self.address.port());
        format!("{scheme}://{address}/ws")
    }
}

/// Opens its root and starts its isolation; it works once it is run.
pub(crate) async fn start(
    options: BuiltinWorker,
    home: &Home,
    program: PathBuf,
    config: &SandboxConfig,
    dial: Dial,
    version: &str,
) -> Result<Worker, BuiltinError> {
    let folder = home.worker_dir(LOCAL);
    let root = home
        .create_worker_root(LOCAL)
        .map_err(|source| BuiltinError::Folder {
            path: folder.join("root"),
            source,
        })?;
    let spool = folder.join("spool");
    let mut worker = WorkerConfig::new(&dial.url(), LOCAL, root, spool);
    worker.token = Some(dial.token);
    version.clone_into(&mut worker.version);
    worker.env = options.env;
    worker.shell = options.shell;
    worker.quotas.spool_bytes = config.output_quota.bytes();
    worker.quotas.commands = config.commands_max as usize;
    worker.quotas.shells = config.shells_max as usize;
    worker.quotas.transfers = config.transfers_max as usize;
    worker.pulse = Pulse {
        heartbeat: config.heartbeat,
        ..Pulse::default()
    };
    worker.isolation = Some(IsolationConfig {
        helper: HelperCommand {
            program,
            args: options.helper_args,
        },
        confine: config.isolate,
        network: config.network,
        read: config.read.clone(),
        write: config.write.clone(),
        temp: temp(home, &folder),
        limits: config.limits,
    });
    let copies = WorkspaceCopies::of(&worker, folder.join("copies")).map_err(StartError::Tls)?;
    worker.mirrors = Some(Arc::new(copies));
    Ok(Worker::start(worker).await?)
}

/// The folder that commands of the worker which keeps its things in `folder` have for temporary files.
fn temp(home: &Home, folder: &Path) -> PathBuf {
    temp_beside(home.root(), &folder.join("tmp"))
}

/// The folder that commands of the built-in worker have for `/tmp`, where the home folder is in that.
pub fn instead_of_temp(home: &Home, config: &SandboxConfig) -> Option<PathBuf> {
    let folder = home.worker_dir(LOCAL);
    let temp = temp(home, &folder);
    (config.isolate && temp.starts_with(folder)).then_some(temp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_dials_what_the_daemon_serves() {
        for (address, tls, url) in [
            ("127.0.0.1:7505", false, "ws://127.0.0.1:7505/ws"),
            ("0.0.0.0:7505", true, "wss://127.0.0.1:7505/ws"),
            ("[::]:7505", true, "wss://[::1]:7505/ws"),
            ("192.0.2.1:7505", true, "wss://192.0.2.1:7505/ws"),
        ] {
            let dial = Dial {
                address: address.parse().expect("an address"),
                tls,
                token: Token::mint([0; 32], None),
            };
            assert_eq!(dial.url(), url);
        }
    }
}
