//! Providers, and which of them serves a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Format;
use super::prices::{self, Price};
use crate::secret::ApiKey;

/// The model of somebody who names none, of OpenAI and of who stands in its place.
pub const OPENAI_DEFAULT: &str = "gpt-5.4";

/// What a provider is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderKind {
    /// Anthropic, and what speaks its Messages format. `base_url` is without `/v1`.
    Anthropic,
    /// OpenAI, and what speaks its Chat Completions format. `base_url` is with `/v1`.
    OpenAi,
    /// Ollama. `base_url` is what `OLLAMA_HOST` holds.
    Ollama,
}

/// A provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    /// Its name in the configuration.
    pub name: String,
    /// What it is.
    pub kind: ProviderKind,
    /// Where it is, as its own client takes it; without a slash at the end. Empty is nowhere.
    pub base_url: String,
    /// Its key.
    pub key: Option<ApiKey>,
    /// The models it serves, where that is said; the first is its default.
    pub models: Vec<String>,
    /// Prices that are stronger than the published ones.
    pub prices: BTreeMap<String, Price>,
}

/// How a Chat Completions service takes what the format leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's own service.
    OpenAi,
    /// OpenRouter: says what a call cost, takes a number of tokens for thinking.
    OpenRouter,
    /// Any other: only what everybody knows.
    Plain,
}

impl Provider {
    /// Whether it can be asked: it has a key, or is at an address that may need none.
    pub fn is_usable(&self) -> bool {
        !self.base_url.is_empty() && (self.key.is_some() || !self.needs_key())
    }

    fn needs_key(&self) -> bool {
        ["api.anthropic.com", "api.openai.com", "openrouter.ai"].contains(&self.host())
    }

    /// The host of its address, without the port.
    pub fn host(&self) -> &str {
        let rest = self
            .base_url
            .split_once("://")
            .map_or(self.base_url.as_str(), |(_, rest)| rest);
        rest.split(['/', ':']).next().unwrap_or(rest)
    }

    /// What it speaks.
    pub fn format(&self) -> Format {
        match self.kind {
            ProviderKind::Anthropic => Format::Messages,
            ProviderKind::OpenAi | ProviderKind::Ollama => Format::Chat,
        }
    }

    /// How it takes what the Chat Completions format leaves open.
    pub fn dialect(&self) -> Dialect {
        match self.host() {
            "api.openai.com" => Dialect::OpenAi,
            "openrouter.ai" => Dialect::OpenRouter,
            _ => Dialect::Plain,
        }
    }

    /// Where calls go.
    pub fn endpoint(&self) -> String {
        let path = match self.kind {
            ProviderKind::Anthropic => "/v1/messages",
            ProviderKind::OpenAi => "/chat/completions",
            ProviderKind::Ollama => "/v1/chat/completions",
        };
        format!("{}{path}", self.base_url)
    }

    /// Where it lists its models, in the Chat Completions format.
    pub fn models_endpoint(&self) -> String {
        let path = match self.kind {
            ProviderKind::Anthropic | ProviderKind::Ollama => "/v1/models",
            ProviderKind::OpenAi => "/models",
        };
        format!("{}{path}", self.base_url)
    }

    /// The model of somebody who names none.
    pub fn default_model(&self) -> Option<&str> {
        if let Some(first) = self.models.first() {
            return Some(first);
        }
        match (self.kind, self.dialect()) {
            (ProviderKind::Anthropic, _) => Some("claude-sonnet-5-5"),
            (ProviderKind::OpenAi, Dialect::OpenAi) => Some(OPENAI_DEFAULT),
            (ProviderKind::OpenAi, Dialect::OpenRouter) => Some("openrouter/auto"),
            (ProviderKind::OpenAi | ProviderKind::Ollama, _) => None,
        }
    }

    /// What a model costs here.
    ///
    /// A model that no table knows costs what the provider's default model does where the provider
    /// sells models, and nothing elsewhere: a server of one's own sends no bills. One that has the
    /// name of a model that is sold passes its calls on to who sells it.
    pub fn price(&self, model: &str) -> Price {
        if let Some(price) = self.prices.get(model) {
            return *price;
        }
        let sells = self.kind == ProviderKind::Anthropic || self.dialect() != Dialect::Plain;
        let published = match self.kind {
            ProviderKind::Ollama => None,
            ProviderKind::Anthropic | ProviderKind::OpenAi => prices::published(model),
        };
        let default = || match sells {
            true => prices::published(self.default_model()?),
            false => None,
        };
        published.or_else(default).unwrap_or_default()
    }
}

/// One model of one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The provider.
    pub provider: Arc<Provider>,
    /// The provider's own name of the model.
    pub model: String,
}

/// Why no provider can be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// None is set.
    #[error(
        "no model provider is set; `quintet config set providers.anthropic.api_key KEY` sets one (also openai, openrouter, ollama)"
    )]
    NoProvider,
    /// The one that is named has no key.
    #[error(
        "provider {provider:?} has no key; set it with `quintet config set providers.{provider}.api_key KEY`"
    )]
    NotSet {
        /// Its name.
        provider: String,
    },
    /// No provider says that it serves the model.
    #[error("it is not known which provider serves {model:?}; write it as PROVIDER/MODEL (set: {})", usable.join(", "))]
    Unknown {
        /// The model.
        model: String,
        /// Providers that can be asked.
        usable: Vec<String>,
    },
    /// No model is named, and the providers have no default.
    #[error("no model is named; set agents.NAME.model to PROVIDER/MODEL (set: {})", usable.join(", "))]
    NoModel {
        /// Providers that can be asked.
        usable: Vec<String>,
    },
}

/// All providers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Providers {
    list: Vec<Arc<Provider>>,
}

impl Providers {
    /// Takes the providers. The one that is asked first by default is Anthropic, then OpenAI, then
    /// OpenRouter, then the others by name.
    pub fn new(mut list: Vec<Provider>) -> Self {
        list.sort_by_key(|provider| {
            let rank = match (provider.kind, provider.name.as_str()) {
                (_, "anthropic") => 0,
                (_, "openai") => 1,
                (_, "openrouter") => 2,
                (ProviderKind::Anthropic, _) => 3,
                (ProviderKind::OpenAi, _) => 4,
                (ProviderKind::Ollama, _) => 5,
            };
            (rank, provider.name.clone())
        });
        Self {
            list: list.into_iter().map(Arc::new).collect(),
        }
    }

    /// Those that can be asked, in order of preference.
    pub fn usable(&self) -> impl Iterator<Item = &Arc<Provider>> {
        self.list.iter().filter(|provider| provider.is_usable())
    }

    /// The model of somebody who names none, as `provider/model`.
    pub fn default_name(&self) -> Option<String> {
        self.usable().find_map(|provider| {
            let model = provider.default_model()?;
            Some(format!("{}/{model}", provider.name))
        })
    }

    /// Every model that is known by name, as `provider/model`.
    pub fn names(&self) -> Vec<String> {
        self.usable()
            .flat_map(|provider| {
                let default = provider.default_model().into_iter().map(str::to_owned);
                let models = provider.models.iter().skip(1).cloned();
                default
                    .chain(models)
                    .map(|model| format!("{}/{model}", provider.name))
            })
            .collect()
    }

    /// The models to ask, in order: the one that is named (or the default), then the fallbacks.
    ///
    /// A fallback that no provider serves is left out; the first one has to be served.
    ///
    /// # Errors
    ///
    /// When nothing can be asked, with what to do.
    pub fn routes(
        &self,
        model: Option<&str>,
        fallback: &[String],
    ) -> Result<Vec<Route>, RouteError> {
        let model = model.filter(|model| !matches!(*model, "" | "default"));
        let mut routes = vec![match model {
            Some(model) => self.route(model)?,
            None => self.default_route()?,
        }];
        for model in fallback {
            if let Ok(route) = self.route(model)
                && !routes.contains(&route)
            {
                routes.push(route);
            }
        }
        Ok(routes)
    }

    fn default_route(&self) -> Result<Route, RouteError> {
        let found = self.usable().find_map(|provider| {
            Some(Route {
                provider: Arc::clone(provider),
                model: provider.default_model()?.to_owned(),
            })
        });
        found.ok_or_else(|| match self.usable_names() {
            usable if usable.is_empty() => RouteError::NoProvider,
            usable => RouteError::NoModel { usable },
        })
    }

    fn usable_names(&self) -> Vec<String> {
        self.usable()
            .map(|provider| provider.name.clone())
            .collect()
    }

    /// The provider of one model: the one that the name begins with, else the one that lists it,
    /// else the vendor of that family, else a router for `vendor/model`, else the only one there is.
    fn route(&self, name: &str) -> Result<Route, RouteError> {
        let to = |provider: &Arc<Provider>, model: &str| Route {
            provider: Arc::clone(provider),
            model: model.to_owned(),
        };
        let mut unset = None;
        if let Some((prefix, model)) = name.split_once('/')
            && let Some(provider) = self.list.iter().find(|p| p.name == prefix)
        {
            if provider.is_usable() {
                return Ok(to(provider, model));
            }
            unset = Some(prefix.to_owned());
        }
        if let Some(provider) = self
            .usable()
            .find(|p| p.models.iter().any(|model| model == name))
        {
            return Ok(to(provider, name));
        }
        let family = match name {
            name if name.starts_with("claude") => Some(ProviderKind::Anthropic),
            name if ["gpt-", "o1", "o3", "o4", "chatgpt-"]
                .iter()
                .any(|prefix| name.starts_with(prefix)) =>
            {
                Some(ProviderKind::OpenAi)
            }
            _ => None,
        };
        let of_family = |provider: &&Arc<Provider>| Some(provider.kind) == family;
        if let Some(provider) = self.usable().find(of_family) {
            return Ok(to(provider, name));
        }
        if name.contains('/')
            && let Some(provider) = self.usable().find(|p| p.dialect() == Dialect::OpenRouter)
        {
            return Ok(to(provider, name));
        }
        if let Some(provider) = unset {
            return Err(RouteError::NotSet { provider });
        }
        let mut usable = self.usable();
        match (usable.next(), usable.next()) {
            (Some(only), None) => Ok(to(only, name)),
            (None, _) => Err(RouteError::NoProvider),
            _ => Err(RouteError::Unknown {
                model: name.to_owned(),
                usable: self.usable_names(),
            }),
        }
    }
}

/// The address of an Ollama server, from what `OLLAMA_HOST` holds: a host, a port, or both, with
/// or without a scheme. An address to listen on everywhere is asked at home.
pub fn ollama_address(host: &str) -> String {
    let host = host.trim().trim_end_matches('/');
    if host.is_empty() {
        return String::new();
    }
    let (scheme, rest) = host.split_once("://").unwrap_or(("http", host));
    let (name, port) = match rest.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            (name, port)
        }
        _ => (
            rest,
            match (scheme, host.contains("://")) {
                ("https", _) => "443",
                (_, true) => "80",
                _ => "11434",
            },
        ),
    };
    let name = match name {
        "" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        name => name,
    };
    format!("{scheme}://{name}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(name: &str, kind: ProviderKind, base_url: &str, key: &str) -> Provider {
        Provider {
            name: name.to_owned(),
            kind,
            base_url: base_url.to_owned(),
            key: ApiKey::new(key),
            models: Vec::new(),
            prices: BTreeMap::new(),
        }
    }

    fn anthropic(key: &str) -> Provider {
        provider(
            "anthropic",
            ProviderKind::Anthropic,
            "https://api.anthropic.com",
            key,
        )
    }

    fn openai(key: &str) -> Provider {
        provider(
            "openai",
            ProviderKind::OpenAi,
            "https://api.openai.com/v1",
            key,
        )
    }

    fn openrouter(key: &str) -> Provider {
        provider(
            "openrouter",
            ProviderKind::OpenAi,
            "https://openrouter.ai/api/v1",
            key,
        )
    }

    fn found(
        providers: Vec<Provider>,
        model: Option<&str>,
    ) -> Result<(String, String), RouteError> {
        let route = Providers::new(providers).routes(model, &[])?.remove(0);
        Ok((route.provider.name.clone(), route.model))
    }

    #[test]
    fn names_find_their_provider() {
        let all = || vec![openrouter("k"), openai("k"), anthropic("k")];
        for (model, expected) in [
            (None, ("anthropic", "claude-sonnet-5-5")),
            (Some("default"), ("anthropic", "claude-sonnet-5-5")),
            (Some("claude-opus-4-5"), ("anthropic", "claude-opus-4-5")),
            (Some("gpt-5"), ("openai", "gpt-5")),
            (Some("openai/gpt-5"), ("openai", "gpt-5")),
            (
                Some("openrouter/anthropic/claude-x"),
                ("openrouter", "anthropic/claude-x"),
            ),
            (Some("meta/llama"), ("openrouter", "meta/llama")),
        ] {
            let (provider, name) = found(all(), model).unwrap();
            assert_eq!((provider.as_str(), name.as_str()), expected);
        }
        assert_eq!(
            found(
                vec![openrouter("k"), anthropic("")],
                Some("anthropic/claude-x")
            )
            .unwrap(),
            ("openrouter".to_owned(), "anthropic/claude-x".to_owned()),
            "a vendor's name goes to the router when the vendor itself is not set"
        );
        let mut local = provider("lab", ProviderKind::OpenAi, "http://127.0.0.1:8000/v1", "");
        local.models = vec!["qwen".to_owned()];
        assert_eq!(
            found(vec![anthropic("k"), local.clone()], Some("qwen"))
                .unwrap()
                .0,
            "lab"
        );
        assert_eq!(found(vec![local], Some("anything")).unwrap().0, "lab");
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(
            found(vec![anthropic("")], None),
            Err(RouteError::NoProvider)
        );
        assert!(matches!(
            found(vec![anthropic(""), openai("k")], Some("anthropic/claude-x")),
            Err(RouteError::NotSet { provider }) if provider == "anthropic"
        ));
        assert!(matches!(
            found(vec![anthropic("k"), openai("k")], Some("llama")),
            Err(RouteError::Unknown { .. })
        ));
        let ollama = provider("ollama", ProviderKind::Ollama, "http://127.0.0.1:11434", "");
        assert!(matches!(
            found(vec![ollama], None),
            Err(RouteError::NoModel { .. })
        ));
    }

    #[test]
    fn fallbacks_follow_once_each() {
        let providers = Providers::new(vec![anthropic("k"), openai("k")]);
        let fallback = ["nobody/x", "claude-a", "openai/gpt-5", "gpt-5"].map(str::to_owned);
        let routes = providers.routes(Some("claude-a"), &fallback).unwrap();
        let names: Vec<&str> = routes.iter().map(|route| route.model.as_str()).collect();
        assert_eq!(names, ["claude-a", "gpt-5"]);
    }

    #[test]
    fn addresses_are_as_each_client_takes_them() {
        let at = |kind, url| provider("p", kind, url, "").endpoint();
        assert_eq!(
            at(ProviderKind::Anthropic, "http://h:1"),
            "http://h:1/v1/messages"
        );
        assert_eq!(
            at(ProviderKind::OpenAi, "http://h:1/v1"),
            "http://h:1/v1/chat/completions"
        );
        assert_eq!(
            at(ProviderKind::Ollama, "http://h:1"),
            "http://h:1/v1/chat/completions"
        );
        for (host, address) in [
            ("127.0.0.1:11434", "http://127.0.0.1:11434"),
            ("box", "http://box:11434"),
            (":5000", "http://127.0.0.1:5000"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("https://o.example.org/", "https://o.example.org:443"),
            ("http://o.example.org:99", "http://o.example.org:99"),
            ("", ""),
        ] {
            assert_eq!(ollama_address(host), address);
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let shown = format!("{:?}", Providers::new(vec![anthropic("sk-ant-secret")]));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn unknown_models_cost_where_models_are_sold() {
        let zero = Price::default();
        assert_ne!(anthropic("k").price("claude-next"), zero);
        assert_ne!(anthropic("k").price("test-model"), zero);
        let local = provider("lab", ProviderKind::OpenAi, "http://127.0.0.1:8000/v1", "");
        assert_ne!(local.price("gpt-5"), zero);
        assert_eq!(local.price("qwen3"), zero);
    }
}
