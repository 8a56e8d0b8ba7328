//! Providers of the configuration as the gateway takes them.

use quintet_models::{ApiKey, Price, Provider, ProviderKind, Providers};

use crate::config::{self, Config};

/// The providers that are configured.
pub fn providers_of(config: &Config) -> Providers {
    let providers = config.providers.iter().map(|(name, provider)| Provider {
        name: name.clone(),
        kind: match provider.kind {
            config::ProviderKind::Anthropic => ProviderKind::Anthropic,
            config::ProviderKind::OpenAi => ProviderKind::OpenAi,
            config::ProviderKind::Ollama => ProviderKind::Ollama,
        },
        base_url: provider.base_url.clone(),
        key: provider
            .api_key
            .as_ref()
            .and_then(|key| ApiKey::new(key.expose())),
        models: provider.models.clone(),
        prices: provider
            .prices
            .iter()
            .map(|price| {
                let of_input = |price: Option<_>, input| price.unwrap_or(input);
                let priced = Price {
                    input: price.input,
                    output: price.output,
                    cache_read: of_input(price.cache_read, price.input),
                    cache_write: of_input(price.cache_write, price.input),
                };
                (price.model.clone(), priced)
            })
            .collect(),
    });
    Providers::new(providers.collect())
}

/// Whether some provider can be asked.
pub(crate) fn is_set(config: &Config) -> bool {
    providers_of(config).usable().next().is_some()
}

/// The model of an agent that names none.
pub(crate) fn default_model(config: &Config) -> Option<String> {
    providers_of(config).default_name()
}
