//! `quintet config path`, `get` and `set`.

use std::process::ExitCode;

use clap::Subcommand;
use quintet_control::wire::{ConfigChange, SetConfigMsg};
use quintet_control::{Client, ClientError};
use quintet_runtime::config::{ConfigErrors, ConfigStore, KeyPath};
use serde_json::Value;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::settings;

const GET_EXAMPLES: &str = "\
Examples:
  quintet config get                 Everything, as JSON; secrets as \"***\"
  quintet config get http.listen";

const SET_EXAMPLES: &str = "\
Examples:
  quintet config set providers.anthropic.api_key \"$ANTHROPIC_API_KEY\"
  quintet config set agents.mine.command '[\"python3\", \"agent.py\"]'
  quintet config set agents.mine.idle_timeout 30m";

/// Show and change the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print where config.toml is
    Path,
    /// Print the configuration in force, or one key of it
    #[command(after_help = GET_EXAMPLES)]
    Get {
        /// A dotted key; without one everything
        key: Option<String>,

        #[command(flatten)]
        json: JsonArg,
    },
    /// Set one key in config.toml; a running daemon applies it at once
    ///
    /// The whole configuration is checked first; a mistake changes nothing.
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// A dotted key
        key: String,

        /// The value; lists and tables as JSON or TOML
        value: String,
    },
}

pub(crate) async fn run(
    context: &Context,
    command: ConfigCommand,
) -> Result<ExitCode, CommandError> {
    match command {
        ConfigCommand::Path => {
            context.output.line(context.home.config_file().display())?;
        }
        ConfigCommand::Get { key, json } => {
            let config = current(context).await?;
            let value = match &key {
                Some(key) => find(&config, key)?,
                None => &config,
            };
            match value {
                Value::String(text) if !json.json => context.output.line(text)?,
                value => context.output.json(value)?,
            }
        }
        ConfigCommand::Set { key, value } => set(context, &key, &value).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What the daemon uses; without one, what it would use.
async fn current(context: &Context) -> Result<Value, CommandError> {
    match connect::dial(&context.home).await {
        Ok(mut daemon) => Ok(serde_json::from_str(&daemon.get_config().await?.config)?),
        Err(_) => Ok(store(context)?.to_json()),
    }
}

async fn set(context: &Context, key: &str, value: &str) -> Result<(), CommandError> {
    let Ok(mut daemon) = connect::dial(&context.home).await else {
        context.home.create()?;
        ConfigStore::write_first_run(&settings::inputs(&context.home)).map_err(refused)?;
        let changes = store(context)?.set_key(key, value);
        let changes = changes.map_err(|problems| refused(problems).hint(NOT_SET))?;
        let json = |value: Option<Value>| value.map(|it| it.to_string()).unwrap_or_default();
        let changes = changes.into_iter().map(|change| ConfigChange {
            key: change.key.to_string(),
            from: json(change.from),
            to: json(change.to),
            // No daemon runs that it could not apply to.
            at_restart: false,
        });
        tell(context, &changes.collect::<Vec<_>>());
        return Ok(());
    };
    let mut config: Value = serde_json::from_str(&daemon.get_config().await?.config)?;
    insert(&mut config, key, value)?;
    let request = SetConfigMsg {
        config: config.to_string(),
    };
    let answer = daemon.set_config(request).await;
    let answer = answer.map_err(|error| match error {
        // What the file has is not at fault, so it is not the file that is to be edited.
        ClientError::Server(_) => connect::config_refusal(error).hint(NOT_SET),
        error => error.into(),
    });
    let changes = answer?.changed;
    tell(context, &changes);
    Ok(())
}

const NOT_SET: &str = "nothing was changed; `quintet config get` prints every key and its value";

/// Says which keys changed, and which of them wait for a restart.
pub(super) fn tell(context: &Context, changes: &[ConfigChange]) {
    if changes.is_empty() {
        context.output.talk("nothing changed");
    }
    let value = |json: &str| match json {
        "" => "not set".to_owned(),
        json => shortened(json),
    };
    for change in changes {
        let when = match change.at_restart {
            true => ", when the daemon is restarted",
            false => "",
        };
        let (from, to) = (value(&change.from), value(&change.to));
        context
            .output
            .talk(format!("{}: {from} -> {to}{when}", change.key));
    }
}

/// A value that fits a line.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn store(context: &Context) -> Result<ConfigStore, CommandError> {
    ConfigStore::open(settings::inputs(&context.home)).map_err(refused)
}

fn refused(problems: ConfigErrors) -> CommandError {
    CommandError::config(problems)
}

fn parse(key: &str) -> Result<KeyPath, CommandError> {
    KeyPath::parse(key).map_err(|error| CommandError::new(crate::error::ErrorKind::Usage, error))
}

fn find<'a>(config: &'a Value, key: &str) -> Result<&'a Value, CommandError> {
    parse(key)?
        .parts()
        .iter()
        .try_fold(config, |value, part| value.get(part))
        .ok_or_else(|| {
            CommandError::failed(format!("{key} is not set and has no default"))
                .hint("`quintet config get` prints every key")
        })
}

/// Puts a typed value into the tables, as the type that the key has now.
fn insert(config: &mut Value, key: &str, typed: &str) -> Result<(), CommandError> {
    let path = parse(key)?;
    let mut place = config;
    for part in path.parts() {
        if !place.is_object() && !place.is_null() {
            return Err(CommandError::config(anyhow::anyhow!(
                "{key}: {part} is not in a table"
            )));
        }
        place = &mut place[part.as_str()];
    }
    *place = read(typed, place);
    Ok(())
}

fn read(typed: &str, before: &Value) -> Value {
    if before.is_string() {
        return typed.into();
    }
    let toml = || {
        let table: serde_json::Map<String, Value> =
            toml::from_str(&format!("value = {typed}")).ok()?;
        table.get("value").cloned()
    };
    serde_json::from_str(typed)
        .ok()
        .or_else(toml)
        .unwrap_or_else(|| typed.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_take_the_type_that_fits() {
        for (typed, before, want) in [
            ("5", json!("x"), json!("5")),
            ("5", json!(1), json!(5)),
            ("true", json!(false), json!(true)),
            ("[\"a\"]", json!([]), json!(["a"])),
            ("['a', 'b']", json!([]), json!(["a", "b"])),
            ("{ turn = \"0.5\" }", Value::Null, json!({"turn": "0.5"})),
            ("plain words", Value::Null, json!("plain words")),
            ("10m", Value::Null, json!("10m")),
        ] {
            assert_eq!(read(typed, &before), want, "{typed}");
        }
    }

    #[test]
    fn a_key_is_found_and_set_by_its_dotted_name() {
        let mut config = json!({"http": {"listen": "a"}});
        insert(&mut config, "http.listen", "b").unwrap();
        insert(&mut config, "agents.\"my agent\".model", "m").unwrap();
        assert_eq!(
            config,
            json!({"http": {"listen": "b"}, "agents": {"my agent": {"model": "m"}}})
        );
        assert_eq!(find(&config, "http.listen").unwrap(), "b");
        assert!(find(&config, "http.nothing").is_err());
        assert!(insert(&mut config, "http.listen.deeper", "x").is_err());
        assert!(insert(&mut config, "a..b", "x").is_err());
    }
}
