//! What a worker's commands are confined with here.

use quintet_runtime::config;
use quintet_runtime::home::Home;
use quintet_sandbox::isolate::{Network, probe};

use super::Check;
use crate::settings;

/// With the network as `local` has it.
pub(super) fn checks(home: &Home) -> Vec<Check> {
    // What is wrong with the configuration is said by its own check.
    let network = config::load(&settings::inputs(home))
        .map_or(Network::On, |(config, _)| config.sandbox.network);
    probe(network)
        .into_iter()
        .map(|feature| {
            let name = format!("isolate {}", feature.name);
            if feature.available {
                Check {
                    fix: feature.fix,
                    ..Check::good(name, feature.detail)
                }
            } else {
                Check::bad(name, feature.detail, feature.fix)
            }
        })
        .collect()
}
