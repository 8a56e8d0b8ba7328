//! Model providers and tool servers: what is configured, and what is missing to use it.

use quintet_runtime::config::{self, McpConfig};
use quintet_runtime::home::Home;

use super::Check;
use crate::commands::providers::{key_of, usable};
use crate::settings;

/// One line for each provider and each tool server. A wrong configuration is told of elsewhere.
pub(super) fn checks(home: &Home) -> Vec<Check> {
    let Ok((config, _)) = config::load(&settings::inputs(home)) else {
        return Vec::new();
    };
    let (mut checks, usable) = (Vec::new(), usable(&config));
    for (name, provider) in &config.providers {
        let (check, detail) = (format!("provider {name}"), key_of(provider));
        checks.push(match usable.contains(name) {
            true => Check::good(check, detail),
            false => {
                let lacks = match provider.base_url.as_str() {
                    "" => "base_url URL",
                    _ => "api_key KEY",
                };
                let fix = format!("quintet config set providers.{name}.{lacks}");
                Check::bad(check, detail, fix)
            }
        });
    }
    for (name, server) in &config.mcps {
        checks.push(Check::good(format!("mcp {name}"), source(server)));
    }
    checks
}

fn source(server: &McpConfig) -> String {
    match server {
        McpConfig::Command { command, .. } => {
            let program = command.first().map(String::as_str).unwrap_or_default();
            format!("the program {program}")
        }
        McpConfig::Url { url, .. } => url.clone(),
    }
}
