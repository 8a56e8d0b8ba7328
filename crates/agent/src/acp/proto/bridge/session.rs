//! From `init` to an open session.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    ClientCapabilities, FileSystemCapabilities, HttpHeader, Implementation, InitializeRequest,
    InitializeResponse, LoadSessionRequest, McpServer, McpServerHttp, NewSessionRequest, SessionId,
};
use serde_json::Value;
use std::path::PathBuf;

use super::{Bridge, BridgeError, Kept, Pending, Phase, out_id};
use crate::proto::element::Element;
use crate::proto::message::{AgentToCoordinator, FinishReason, Init};

impl Bridge {
    pub(super) fn init(&mut self, init: Init) {
        self.workspace = PathBuf::from(init.workspace);
        self.config = init.config;
        self.kept = match serde_json::from_value(init.state.clone()) {
            Ok(kept) => kept,
            Err(_) if init.state.is_null() => Kept::default(),
            Err(error) => {
                self.log(
                    "warn",
                    format!("the state is not this bridge's ({error}); starting anew"),
                );
                Kept::default()
            }
        };
        self.phase = Phase::Opening;
        let files = FileSystemCapabilities::new()
            .read_text_file(true)
            .write_text_file(true);
        self.call(
            Pending::Initialize,
            InitializeRequest::new(ProtocolVersion::V1)
                .client_capabilities(ClientCapabilities::new().fs(files))
                .client_info(Implementation::new("quintet", env!("CARGO_PKG_VERSION"))),
        );
    }

    pub(super) fn initialized(&mut self, answer: InitializeResponse) -> Result<(), BridgeError> {
        if answer.protocol_version != ProtocolVersion::V1 {
            return Err(BridgeError::Version {
                version: answer.protocol_version.as_u16(),
            });
        }
        self.agent = answer.agent_capabilities;
        self.auth_methods = answer
            .auth_methods
            .iter()
            .map(|method| method.name().to_owned())
            .collect();
        self.open_session();
        Ok(())
    }

    pub(super) fn open_session(&mut self) {
        self.phase = Phase::Opening;
        match self.kept.session_id.clone() {
            Some(session) if self.agent.load_session => {
                let load = LoadSessionRequest::new(session, self.workspace.clone())
                    .mcp_servers(self.mcp_servers());
                self.call(Pending::LoadSession, load);
            }
            _ => self.new_session(),
        }
    }

    /// Answers what waits with the reason that it cannot be worked on.
    pub(super) fn lock(&mut self) {
        self.phase = Phase::Locked;
        let methods = self.auth_methods.join(", ");
        let text = format!(
            "The agent wants a login first ({methods}): log in with its own command, then try again."
        );
        self.log("error", text.clone());
        for message in std::mem::take(&mut self.waiting) {
            let out_id = out_id(&message.id);
            self.element(&out_id, Element::TextDelta { text: text.clone() });
            self.up(AgentToCoordinator::Complete {
                message_id: out_id.into(),
                finish_reason: FinishReason::Error,
                token_usage: None,
            });
        }
    }

    pub(super) fn new_session(&mut self) {
        self.preface = self
            .config
            .get("prompt")
            .and_then(Value::as_str)
            .filter(|prompt| !prompt.is_empty())
            .map(str::to_owned);
        let new = NewSessionRequest::new(self.workspace.clone()).mcp_servers(self.mcp_servers());
        self.call(Pending::NewSession, new);
    }

    /// The daemon's tools, for an agent that can reach them over HTTP.
    fn mcp_servers(&self) -> Vec<McpServer> {
        let text = |key: &str| self.config.get(key).and_then(Value::as_str);
        match text("mcp_url") {
            Some(url) if self.agent.mcp_capabilities.http => {
                let headers = text("mcp_token")
                    .map(|token| HttpHeader::new("Authorization", format!("Bearer {token}")))
                    .into_iter()
                    .collect();
                vec![McpServer::Http(
                    McpServerHttp::new("quintet", url).headers(headers),
                )]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn open(&mut self, session: SessionId) {
        self.phase = Phase::Open(session);
        self.next_turn();
    }
}
