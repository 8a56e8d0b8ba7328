//! What an agent reports and asks while a session is open.

use std::time::Duration;

use agent_client_protocol_schema::v1::{
    CLIENT_METHOD_NAMES, Error, ReadTextFileRequest, RequestId, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, SessionNotification, SessionUpdate,
    WriteTextFileRequest,
};
use rust_decimal::Decimal;
use serde_json::Value;

use super::{Bridge, Effect, Permission, Phase};
use crate::acp::proto::permission;
use crate::proto::message::{AgentToCoordinator, ApprovalResult};

/// Permission requests open at a time; further ones are answered as cancelled.
const PERMISSION_LIMIT: usize = 256;

impl Bridge {
    pub(super) fn update(&mut self, params: Value, now: Duration) {
        // While a session is loaded, its history is told again: clients have it already.
        let Phase::Open(session) = &self.phase else {
            return;
        };
        let notification: SessionNotification = match serde_json::from_value(params) {
            Ok(notification) => notification,
            Err(error) => {
                self.log("debug", format!("ignored a session/update: {error}"));
                return;
            }
        };
        if notification.session_id != *session {
            return;
        }
        if let SessionUpdate::UsageUpdate(usage) = &notification.update {
            self.cost(usage.cost.as_ref().map(|cost| cost.amount));
            return;
        }
        if let Some(turn) = &mut self.turn {
            let elements = turn.translator.update(notification.update, now);
            self.elements(elements);
        }
    }

    /// Takes the session's running total; the turn used what it grew by.
    fn cost(&mut self, total: Option<f64>) {
        // The shortest text that is this number: what the agent wrote, not the float's digits.
        let Some(total) = total.and_then(|total| total.to_string().parse::<Decimal>().ok()) else {
            return;
        };
        let Some(turn) = &mut self.turn else { return };
        let grown = total.saturating_sub(self.kept.cost);
        if grown > Decimal::ZERO {
            let usage = turn.usage.get_or_insert_default();
            usage.cost = usage.cost.saturating_add(grown);
            let token_usage = *usage;
            self.kept.cost = total;
            // While the turn runs, so that its budget can end it.
            self.up(AgentToCoordinator::Usage { token_usage });
            self.keep();
        }
    }

    pub(super) fn request(&mut self, id: RequestId, method: &str, params: Value, now: Duration) {
        if method == CLIENT_METHOD_NAMES.session_request_permission {
            match serde_json::from_value(params) {
                Ok(request) => self.ask_permission(id, request, now),
                Err(error) => self.answer(&id, &Err(error.into())),
            }
        } else if method == CLIENT_METHOD_NAMES.fs_read_text_file {
            match serde_json::from_value::<ReadTextFileRequest>(params) {
                Ok(request) => self.effects.push_back(Effect::Read {
                    id,
                    path: request.path,
                    line: request.line,
                    limit: request.limit,
                }),
                Err(error) => self.answer(&id, &Err(error.into())),
            }
        } else if method == CLIENT_METHOD_NAMES.fs_write_text_file {
            match serde_json::from_value::<WriteTextFileRequest>(params) {
                Ok(request) => self.effects.push_back(Effect::Write {
                    id,
                    path: request.path,
                    content: request.content,
                }),
                Err(error) => self.answer(&id, &Err(error.into())),
            }
        } else {
            self.answer(&id, &Err(Error::method_not_found()));
        }
    }

    fn ask_permission(&mut self, id: RequestId, request: RequestPermissionRequest, now: Duration) {
        let open = self.permissions.len() < PERMISSION_LIMIT;
        let Some(turn) = self.turn.as_mut().filter(|turn| open && !turn.cancelled) else {
            self.permit(&id, RequestPermissionOutcome::Cancelled);
            return;
        };
        let (call, elements) = turn.translator.permission(request.tool_call, now);
        self.elements(elements);
        self.last_permission = self.last_permission.saturating_add(1);
        let request_id = format!("permission_{}", self.last_permission);
        self.up(AgentToCoordinator::ApprovalRequest(
            permission::approval_request(request_id.clone(), &call),
        ));
        self.permissions.insert(
            request_id,
            Permission {
                id,
                options: request.options,
            },
        );
    }

    pub(super) fn approval(&mut self, result: &ApprovalResult) {
        // An answer may cross with a cancel that has already answered.
        if let Some(permission) = self.permissions.remove(&result.request_id) {
            let outcome = permission::outcome(&permission.options, result);
            self.permit(&permission.id, outcome);
        }
    }

    pub(super) fn permit(&mut self, id: &RequestId, outcome: RequestPermissionOutcome) {
        let response = RequestPermissionResponse::new(outcome);
        let answer = serde_json::to_value(response).map_err(Error::from);
        self.answer(id, &answer);
    }
}
