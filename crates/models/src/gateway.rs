//! The gateway's routes: a call from its key to its answer.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::access::{Access, Caller};
use crate::proto::fault::{BUDGET_KIND, Fault, Refusal};
use crate::proto::provider::{OPENAI_DEFAULT, Route, RouteError};
use crate::proto::request::Request;
use crate::proto::retry::{Next, RetryPolicy};
use crate::proto::{Format, MAX_REQUEST};
use crate::reply::{self, Booking};
use crate::upstream::{Answer, Call, Deadlines, Upstream};

/// How the gateway treats providers.
#[derive(Debug, Clone, Copy)]
pub struct GatewayOptions {
    /// From the dial to the connection.
    pub connect: Duration,
    /// The longest silence in a stream, its beginning included.
    pub idle: Duration,
    /// The longest wait for an answer that is not streamed.
    pub answer: Duration,
    /// How calls are made again.
    pub retry: RetryPolicy,
    /// Calls at once; one more is refused with 503.
    pub calls: usize,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            answer: Duration::from_secs(600),
            retry: RetryPolicy::default(),
            calls: 256,
        }
    }
}

/// Serves agents' calls of models. Clones share everything.
pub struct Gateway<A> {
    inner: Arc<Inner<A>>,
}

struct Inner<A> {
    access: Arc<A>,
    upstream: Upstream,
    retry: RetryPolicy,
    permits: Arc<Semaphore>,
    /// Bookings of callers that went away.
    tasks: TaskTracker,
}

impl<A> Clone for Gateway<A> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<A: Access> Gateway<A> {
    /// A gateway over the daemon's keys and books.
    pub fn new(access: Arc<A>, options: GatewayOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                access,
                upstream: Upstream::new(Deadlines {
                    connect: options.connect,
                    idle: options.idle,
                    answer: options.answer,
                }),
                retry: options.retry,
                permits: Arc::new(Semaphore::new(options.calls)),
                tasks: TaskTracker::new(),
            }),
        }
    }

    /// `POST /v1/messages`, `POST /v1/chat/completions`, `GET /v1/models`.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/messages", post(messages::<A>))
            .route("/v1/chat/completions", post(chat::<A>))
            .route("/v1/models", get(models::<A>))
            .with_state(self.clone())
    }

    /// Waits until everything that was used is booked.
    pub async fn shutdown(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    async fn serve(&self, format: Format, request: HttpRequest) -> Result<Response, Refusal> {
        let (parts, body) = request.into_parts();
        let caller = self.caller(&parts.headers)?;
        let permit = Arc::clone(&self.inner.permits)
            .try_acquire_owned()
            .map_err(|_| Refusal::new(503, "overloaded_error", "too many model calls at once"))?;
        let call = Call {
            format,
            request: read(body).await?,
            headers: parts.headers,
        };
        let agent = caller.agent.clone();
        let answer = self.answer(caller, &call).await;
        let response = answer.map_err(|refusal| refusal.to_agent(&agent))?;
        // Held until the answer has left or the caller has.
        Ok(response.map(|body| {
            use futures_util::StreamExt;
            Body::from_stream(body.into_data_stream().map(move |part| {
                let _held = &permit;
                part
            }))
        }))
    }

    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let text = |name: header::HeaderName| headers.get(name)?.to_str().ok();
        let bearer = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        bearer
            .or_else(|| headers.get("x-api-key")?.to_str().ok())
            .and_then(|key| self.inner.access.caller(key.trim()))
            .ok_or_else(|| {
                let message = "this key is of no running agent; send init.config's ensemble_api_key as `Authorization: Bearer` or `x-api-key`";
                Refusal::new(401, "authentication_error", message)
            })
    }

    /// The models to ask. A provider without a default is asked what it has.
    async fn routes(
        &self,
        model: Option<&str>,
        fallback: &[String],
    ) -> Result<Vec<Route>, RouteError> {
        let providers = self.inner.access.providers();
        let without_default = match providers.routes(model, fallback) {
            Err(error @ RouteError::NoModel { .. }) => error,
            routes => return routes,
        };
        for provider in providers.usable() {
            if let Some(model) = self.inner.upstream.first_model(provider).await {
                return Ok(vec![Route {
                    provider: Arc::clone(provider),
                    model,
                }]);
            }
        }
        // Under that name there is somebody who passes calls on to it.
        let in_its_place = providers
            .usable()
            .find(|provider| provider.name == "openai");
        match in_its_place {
            Some(provider) => Ok(vec![Route {
                provider: Arc::clone(provider),
                model: OPENAI_DEFAULT.to_owned(),
            }]),
            None => Err(without_default),
        }
    }

    /// Asks the models of the list in turn until one answers.
    async fn answer(&self, caller: Caller, call: &Call) -> Result<Response, Refusal> {
        let model = call.request.model.as_deref().or(caller.model.as_deref());
        let routes = self
            .routes(model, &caller.fallback)
            .await
            .map_err(|error| Refusal::new(404, "not_found_error", error.to_string()))?;
        let usage = call.request.at_most();
        let costs = routes
            .iter()
            .map(|route| route.provider.price(&route.model).cost(&usage));
        let leave = self
            .inner
            .access
            .admit(&caller, costs.max().unwrap_or_default())
            .await
            .map_err(|sentence| Refusal::new(402, BUDGET_KIND, sentence))?;
        let leave = Arc::new(leave);
        let mut failed: Vec<Fault> = Vec::new();
        for route in routes {
            let mut attempt = 0u32;
            loop {
                attempt = attempt.saturating_add(1);
                // Before the call: a caller that hangs up while it is made has asked all the same.
                let booking = Booking::new(
                    Arc::clone(&self.inner.access),
                    self.inner.tasks.clone(),
                    caller.clone(),
                    route.clone(),
                    Arc::clone(&leave),
                );
                let asking = self.inner.upstream.ask(&route, call, booking.asked());
                let fault = match asking.await {
                    Ok(answer) => {
                        if !failed.is_empty() {
                            let failed: Vec<_> = failed.iter().map(named).collect();
                            let to = format!("{}/{}", route.provider.name, route.model);
                            self.inner.access.went_on(&caller, &failed, &to).await;
                        }
                        let (format, usage) = (call.format, call.request.wants_usage);
                        return match answer {
                            Answer::Whole { headers, body } => {
                                reply::whole(booking, format, headers, body)
                                    .await
                                    .map_err(|fault| fault.refusal())
                            }
                            Answer::Stream(streaming) => {
                                Ok(reply::stream(booking, format, usage, streaming))
                            }
                        };
                    }
                    Err(fault) => fault,
                };
                booking.nothing_to_book();
                let next = self.inner.retry.after(attempt, fault.failure(), random());
                tracing::debug!(provider = %fault.provider, model = %fault.model, attempt, ?next, "a model call failed");
                match next {
                    Next::Again(pause) => tokio::time::sleep(pause).await,
                    Next::NextModel => {
                        failed.push(fault);
                        break;
                    }
                    Next::GiveUp => {
                        failed.push(fault);
                        return Err(told(&failed));
                    }
                }
            }
        }
        Err(told(&failed))
    }
}

/// A model that was asked, and what was wrong with it.
fn named(fault: &Fault) -> (String, String) {
    let model = format!("{}/{}", fault.provider, fault.model);
    (model, fault.refusal().message)
}

/// The refusal after the last of these faults, which names each model that was asked.
fn told(failed: &[Fault]) -> Refusal {
    for fault in failed {
        let error = fault.refusal().message;
        tracing::warn!(provider = %fault.provider, model = %fault.model, %error, "a model call failed");
    }
    let Some((last, before)) = failed.split_last() else {
        return Refusal::new(500, "api_error", "there was no model to ask");
    };
    let mut refusal = last.refusal();
    if !before.is_empty() {
        let each = failed.iter().map(named);
        let each: Vec<String> = each.map(|(model, why)| format!("{model}: {why}")).collect();
        refusal.message = format!("no model answered. {}", each.join(" | "));
    }
    refusal
}

fn random() -> u32 {
    // Each state is seeded anew by the system; that is all the chance that a pause needs.
    let [a, b, c, d, ..] = RandomState::new().hash_one(0u8).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

async fn read(body: Body) -> Result<Request, Refusal> {
    let bytes = axum::body::to_bytes(body, MAX_REQUEST).await.map_err(|_| {
        let message = format!("the request is larger than {MAX_REQUEST} bytes, or broke off");
        Refusal::new(413, "request_too_large", message)
    })?;
    Request::read(bytes)
        .map_err(|error| Refusal::new(400, "invalid_request_error", error.to_string()))
}

async fn messages<A: Access>(State(gateway): State<Gateway<A>>, request: HttpRequest) -> Response {
    let format = Format::Messages;
    let served = gateway.serve(format, request).await;
    served.unwrap_or_else(|refusal| refuse(&refusal, format))
}

async fn chat<A: Access>(State(gateway): State<Gateway<A>>, request: HttpRequest) -> Response {
    let format = Format::Chat;
    let served = gateway.serve(format, request).await;
    served.unwrap_or_else(|refusal| refuse(&refusal, format))
}

/// Lists the models in the words of both formats.
async fn models<A: Access>(State(gateway): State<Gateway<A>>, headers: HeaderMap) -> Response {
    if let Err(refusal) = gateway.caller(&headers) {
        return refuse(&refusal, Format::Chat);
    }
    let data: Vec<Value> = gateway
        .inner
        .access
        .providers()
        .names()
        .into_iter()
        .map(|name| json!({ "id": name, "object": "model", "type": "model", "display_name": name }))
        .collect();
    axum::Json(json!({ "object": "list", "data": data, "has_more": false })).into_response()
}

fn refuse(refusal: &Refusal, format: Format) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, axum::Json(refusal.body(format))).into_response();
    if let Some(after) = refusal.retry_after {
        let seconds = after
            .as_secs()
            .saturating_add(u64::from(after.subsec_nanos() > 0));
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
