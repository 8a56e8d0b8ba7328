//! Keys of instances, and what an instance is told of the gateway.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quintet_agent::proto::message::AgentId;
use serde_json::{Map, Value};

/// Where agents find the daemon's own services, and with which key. Clones share the keys.
#[derive(Clone)]
pub(crate) struct AgentDoor {
    url: Arc<str>,
    /// Held to look up and insert, never across an await.
    keys: Arc<Mutex<Keys>>,
}

#[derive(Default)]
struct Keys {
    owners: HashMap<String, AgentId>,
    of: HashMap<AgentId, String>,
}

impl AgentDoor {
    /// For services at a base URL, without a slash at its end.
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            keys: Arc::default(),
        }
    }

    /// The base URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The instance that a key was made for.
    pub(crate) fn owner(&self, key: &str) -> Option<AgentId> {
        self.keys().owners.get(key).cloned()
    }

    /// Forgets the key of an instance that has ended for good.
    pub(crate) fn forget(&self, instance: &AgentId) {
        let mut keys = self.keys();
        if let Some(key) = keys.of.remove(instance) {
            keys.owners.remove(&key);
        }
    }

    /// Tells an instance where the gateway and the tools are and gives it its key for both, made on
    /// first use.
    pub(crate) fn tell(&self, instance: &AgentId, config: &mut Map<String, Value>) {
        config.insert("ensemble_url".into(), self.url().into());
        config.insert("ensemble_api_key".into(), self.key_of(instance).into());
        config.insert("mcp_url".into(), format!("{}/mcp", self.url()).into());
        config.insert("mcp_token".into(), self.key_of(instance).into());
    }

    fn key_of(&self, instance: &AgentId) -> String {
        let mut keys = self.keys();
        if let Some(key) = keys.of.get(instance) {
            return key.clone();
        }
        let (one, two) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        let key = format!("qk-{}{}", one.simple(), two.simple());
        keys.owners.insert(key.clone(), instance.clone());
        keys.of.insert(instance.clone(), key.clone());
        key
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AgentDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentDoor").field("url", &self.url).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instance_has_a_key_until_it_is_forgotten() {
        let door = AgentDoor::new("http://127.0.0.1:1");
        let told = |id: &str| {
            let mut config = Map::new();
            door.tell(&id.into(), &mut config);
            config["ensemble_api_key"].as_str().unwrap().to_owned()
        };
        let (one, two) = (told("coder-1"), told("coder-2"));
        assert_ne!(one, two);
        assert_eq!(told("coder-1"), one, "the same over its restarts");
        assert_eq!(door.owner(&one), Some("coder-1".into()));
        assert_eq!(door.owner("qk-guess"), None);
        door.forget(&"coder-1".into());
        assert_eq!(door.owner(&one), None);
        assert_eq!(door.owner(&two), Some("coder-2".into()));
        assert!(!format!("{door:?}").contains(&two));
    }
}
