//! A provider's key.

use std::fmt;

use zeroize::Zeroizing;

/// A provider's key: its `Debug` shows nothing, it has no `Serialize`, its memory is wiped.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(Zeroizing<String>);

impl ApiKey {
    /// Takes the key; `None` when there is nothing in it.
    pub fn new(key: &str) -> Option<Self> {
        (!key.is_empty()).then(|| Self(Zeroizing::new(key.to_owned())))
    }

    /// Exposes the key: for the request header that carries it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
