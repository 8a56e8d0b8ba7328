//! What a worker's commands are confined with here.

use quintet_sandbox::isolate::{Network, probe};

use super::Check;

/// With the network as `local` has it.
pub(super) fn checks(network: Network) -> Vec<Check> {
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
