//! The layers of the configuration, as this process sees them.

use quintet_runtime::config::ConfigInputs;
use quintet_runtime::home::Home;

/// `config.toml`, `agents/*.md` and the environment; `up` adds its flags.
pub(crate) fn inputs(home: &Home) -> ConfigInputs {
    ConfigInputs::new(home.config_file(), jiff::tz::TimeZone::system())
        .with_agents_dir(home.agents_dir())
        .with_env(std::env::vars_os())
}
