//! What a worker's commands are confined with here.

use quintet_sandbox::isolate::probe;

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    probe()
        .into_iter()
        .map(|feature| {
            let name = format!("isolate {}", feature.name);
            if feature.available {
                Check::good(name, feature.detail)
            } else {
                Check::bad(name, feature.detail, feature.fix)
            }
        })
        .collect()
}
