//! Who may register.

use std::net::SocketAddr;

use async_trait::async_trait;

use crate::proto::{Token, TokenHash};

/// What is known of a peer before it registers.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Where it dials from.
    pub address: Option<SocketAddr>,
    /// Whether it is a process of this user on this machine, see
    /// [`super::loopback::is_same_user`].
    pub same_user: bool,
    /// The token of its upgrade request, from `Authorization: Bearer` or `?token=`.
    pub token: Option<String>,
}

/// Why a worker may not register. The text goes to the worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// It is remote and brought none.
    #[error("a token is needed; make one with `quintet token create --worker {daemon_id}`")]
    NoToken {
        /// The name it wants.
        daemon_id: String,
    },
    /// It brought one that is not for this id, or was revoked.
    #[error("the token is not valid for {daemon_id}; make a new one")]
    BadToken {
        /// The name it wants.
        daemon_id: String,
    },
    /// The name is the daemon's own worker's.
    #[error(
        "the name {daemon_id:?} is taken by the daemon's own worker; give this one another --daemon-id"
    )]
    Reserved {
        /// The name it wants.
        daemon_id: String,
    },
    /// The tokens could not be looked up.
    #[error("tokens can't be checked now: {0}")]
    Unavailable(String),
}

/// Decides who may register; the runtime implements it over its database.
#[async_trait]
pub trait WorkerAuth: Send + Sync {
    /// Called for every registration, concurrently. An answer holds until the connection ends or
    /// [`super::Hub::recheck`] is called, which is how a revocation takes effect at once.
    async fn authorize(&self, peer: &PeerInfo, daemon_id: &str) -> Result<(), AuthError>;
}

/// The rule itself: the same user on this machine needs no token, anybody else one whose hash is
/// stored for this id.
pub fn check(
    peer: &PeerInfo,
    daemon_id: &str,
    stored: impl IntoIterator<Item = TokenHash>,
) -> Result<(), AuthError> {
    if peer.same_user {
        return Ok(());
    }
    let Some(token) = &peer.token else {
        return Err(AuthError::NoToken {
            daemon_id: daemon_id.to_owned(),
        });
    };
    let bad = AuthError::BadToken {
        daemon_id: daemon_id.to_owned(),
    };
    let Ok(token) = Token::parse(token) else {
        return Err(bad);
    };
    let hash = token.hash(daemon_id);
    // Every hash is compared, so that time does not tell which one was near.
    let matches = stored
        .into_iter()
        .filter(|stored| stored.matches(&hash))
        .count();
    if matches > 0 { Ok(()) } else { Err(bad) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(token: Option<&Token>, same_user: bool) -> PeerInfo {
        PeerInfo {
            address: None,
            same_user,
            token: token.map(Token::expose),
        }
    }

    #[test]
    fn a_remote_worker_needs_a_token_of_its_own_id() {
        let token = Token::mint([1; 32], None);
        let stored = [Token::mint([2; 32], None).hash("w"), token.hash("w")];
        assert_eq!(check(&peer(Some(&token), false), "w", stored), Ok(()));
        assert_eq!(check(&peer(None, true), "w", []), Ok(()));
        assert!(matches!(
            check(&peer(None, false), "w", stored),
            Err(AuthError::NoToken { .. })
        ));
        for (id, stored) in [("other", &stored[..]), ("w", &stored[..1]), ("w", &[])] {
            assert!(matches!(
                check(&peer(Some(&token), false), id, stored.iter().copied()),
                Err(AuthError::BadToken { .. })
            ));
        }
    }
}
