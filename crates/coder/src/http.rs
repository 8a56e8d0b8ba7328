//! The HTTP client of an agent's process: for the daemon on this machine, and nothing else.

use std::time::Duration;

use reqwest::Client;

/// From the dial to the connection: the daemon is on this machine.
const CONNECT: Duration = Duration::from_secs(10);

/// A client for the daemon's services.
pub(crate) fn client() -> Result<Client, String> {
    // The first in the process counts; whichever it is, it is the only one we link.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .connect_timeout(CONNECT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        // The daemon speaks plain HTTP to this machine's agents.
        .tls_certs_only([])
        .build()
        .map_err(|error| format!("no HTTP client can be made: {error}"))
}
