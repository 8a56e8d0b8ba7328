//! Model providers, as `up` and `doctor` tell of them: never a key, only where it is from.

use quintet_runtime::config::{self, Config, ProviderConfig};
use quintet_runtime::providers_of;

use super::Context;
use crate::settings;

/// Why `coder` is ready, behind those words: its model, and where the key is from.
pub(crate) fn why_ready(context: &Context, model: Option<&str>) -> String {
    let Ok((config, _)) = config::load(&settings::inputs(&context.home)) else {
        return String::new();
    };
    let model_of = model.map_or_else(String::new, |model| format!(" with {model}"));
    let usable = usable(&config);
    let named = model.and_then(|model| Some(model.split_once('/')?.0.to_owned()));
    let name = named.filter(|name| usable.contains(name));
    let provider = name
        .or_else(|| usable.first().cloned())
        .and_then(|name| config.providers.get_key_value(&name));
    match provider {
        Some((name, provider)) => format!("{model_of} ({name}: {})", key_of(provider)),
        None => model_of,
    }
}

/// The names of the providers that can be asked.
pub(crate) fn usable(config: &Config) -> Vec<String> {
    let providers = providers_of(config);
    providers.usable().map(|it| it.name.clone()).collect()
}

/// What there is of its key.
pub(crate) fn key_of(provider: &ProviderConfig) -> String {
    let variable = provider.api_key_env.as_deref();
    match (&provider.api_key, variable) {
        (Some(key), Some(name)) if std::env::var(name).is_ok_and(|it| it == key.expose()) => {
            format!("the key of ${name}")
        }
        (Some(_), _) => "the key of the configuration".to_owned(),
        (None, Some(name)) if !name.is_empty() => format!("no key, also not in ${name}"),
        (None, _) if provider.base_url.is_empty() => "no address".to_owned(),
        (None, _) => format!("no key, at {}", provider.base_url),
    }
}
