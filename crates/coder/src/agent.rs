//! The agent on its plane: a message comes, everything around it is gathered, the work begins.

use std::path::PathBuf;
use std::sync::OnceLock;

use quintet_agent::sdk::{Agent, Completion, Turn, TurnError};
use quintet_agent::{InboundMessage, TokenUsage};
use reqwest::Client;
use serde_json::{Value, json};

use crate::mcp::Mcp;
use crate::model::GatewayAddress;
use crate::proto::conversation::Conversation;
use crate::proto::kept;
use crate::proto::prompt::{self, Surroundings};
use crate::proto::tool::Toolbox;
use crate::skills::{Skills, read_from_workspace};
use crate::steps::Work;
use crate::tools::Tools;

/// How large the conversation may get, in tokens, where the configuration does not say.
const CONTEXT_TOKENS: u64 = 160_000;

/// How the daemon's own messages come in, and how its request for a summary begins.
const DAEMON: &str = "daemon";
const SUMMARY_REQUEST: &str = "Summarise this conversation";

/// The `coder` agent.
#[derive(Debug, Default)]
pub(crate) struct Coder {
    http: OnceLock<Result<Client, String>>,
}

impl Agent for Coder {
    async fn on_message(
        &self,
        turn: Turn,
        message: InboundMessage,
    ) -> Result<Completion, TurnError> {
        let text = |key: &str| match turn.session().config(key) {
            Some(Value::String(text)) if !text.is_empty() => Some(text),
            _ => None,
        };
        let http = self.http().map_err(TurnError::Failed)?;
        let (Some(url), Some(key)) = (text("ensemble_url"), text("ensemble_api_key")) else {
            return Err(TurnError::Failed(
                "the daemon told no model gateway; is it of the same version?".to_owned(),
            ));
        };
        let model = text("model").unwrap_or_else(|| "default".to_owned());
        let tools = self.tools(&turn, http, &text).await?;
        let instructions = match &tools.mcp {
            Some(mcp) if tools.toolbox.own_name("read_file").is_some() => {
                read_from_workspace(mcp, "AGENTS.md").await
            }
            _ => None,
        };
        let skills = tools.skills.heads();
        let own_tools = prompt::own_tools(!skills.is_empty());
        let system = prompt::system(&Surroundings {
            prompt: text("prompt").unwrap_or_default(),
            instructions,
            skills,
        });
        let mut work = Work {
            conversation: Conversation::default(),
            thinking: prompt::thinking_of(&model),
            bound: context_bound(&turn),
            gateway: GatewayAddress { url, key },
            turn: &turn,
            http,
            model,
            system,
            tools: &tools,
            own_tools,
            used: TokenUsage::default(),
            text: String::new(),
        };
        recall(&mut work).await?;
        let said = said(&mut work, &message).await?;
        if is_summary_request(&message, said) {
            return work.summarise().await;
        }
        take(&mut work, &message, said).await?;
        work.run().await
    }
}

impl Coder {
    fn http(&self) -> Result<&Client, String> {
        let made = self.http.get_or_init(crate::http::client);
        made.as_ref().map_err(String::clone)
    }

    /// The daemon's tools; without any, the agent can still talk.
    async fn tools(
        &self,
        turn: &Turn,
        http: &Client,
        config: &(impl Fn(&str) -> Option<String> + Sync),
    ) -> Result<Tools, TurnError> {
        let mut tools = Tools {
            mcp: None,
            toolbox: Toolbox::default(),
            skills: Skills::default(),
        };
        if let (Some(url), Some(token)) = (config("mcp_url"), config("mcp_token")) {
            let connecting = async {
                let mcp = Mcp::connect(http.clone(), &url, &token).await?;
                let listed = mcp.tools().await?;
                Ok::<_, crate::mcp::McpError>((mcp, listed))
            };
            match connecting.await {
                Ok((mcp, listed)) => {
                    tools.toolbox = Toolbox::new(&listed);
                    tools.mcp = Some(mcp);
                }
                Err(error) => return Err(TurnError::Failed(error.to_string())),
            }
        } else {
            turn.log("warn", "the daemon offers no tools").await?;
        }
        let home = config("skills_dir").map(PathBuf::from);
        let server = tools.mcp.as_ref().map(|mcp| (mcp, &tools.toolbox));
        tools.skills = Skills::find(home.as_deref(), server).await;
        Ok(tools)
    }
}

fn context_bound(turn: &Turn) -> u64 {
    let configured = turn.session().config("context_tokens");
    configured
        .and_then(|tokens| tokens.as_u64())
        .filter(|tokens| *tokens > 0)
        .unwrap_or(CONTEXT_TOKENS)
}

/// Takes up the conversation where it was left, also by a process that ended in the middle.
async fn recall(work: &mut Work<'_>) -> Result<(), TurnError> {
    let state = work.turn.state().value().await;
    match Conversation::from_state(&state) {
        Some(conversation) => {
            work.conversation = conversation;
            let patch = work.conversation.repaired();
            work.save(patch).await
        }
        None => {
            let patch = work.conversation.whole();
            work.save(patch).await
        }
    }
}

fn is_summary_request(message: &InboundMessage, said: &str) -> bool {
    message.origin.channel == DAEMON && said.starts_with(SUMMARY_REQUEST)
}

/// What the message itself says. A summary that it carries is taken up; one that is carried again,
/// because a turn did not end well, is there already.
async fn said<'m>(work: &mut Work<'_>, message: &'m InboundMessage) -> Result<&'m str, TurnError> {
    let Some(carried) = kept::carried(&message.data.text) else {
        return Ok(&message.data.text);
    };
    if !work.conversation.recalls(carried.preamble) {
        let patch = work.conversation.recall(carried.preamble, carried.kept);
        work.save(patch).await?;
    }
    Ok(carried.message)
}

/// Adds what the person says to the conversation.
async fn take(work: &mut Work<'_>, message: &InboundMessage, text: &str) -> Result<(), TurnError> {
    let images: Vec<Value> = message.data.attachments.iter().filter_map(image).collect();
    let patch = work.conversation.take(text, &images);
    work.save(patch).await
}

/// A picture that a client attached.
fn image(attachment: &Value) -> Option<Value> {
    let text = |keys: [&str; 2]| keys.iter().find_map(|key| attachment[*key].as_str());
    let media_type = text(["media_type", "mime_type"])?;
    let data = text(["data", "base64"])?;
    media_type.starts_with("image/").then(|| {
        json!({ "type": "image", "source": {
            "type": "base64", "media_type": media_type, "data": data,
        }})
    })
}
