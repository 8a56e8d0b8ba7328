//! The caller's end of a call: the answer passed on, metered and booked.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde_json::Value;
use tokio_util::task::TaskTracker;

use crate::access::{Access, CallRecord, Caller};
use crate::proto::Format;
use crate::proto::fault::{Fault, FaultKind, without_secret};
use crate::proto::meter::{Seen, of_answer};
use crate::proto::provider::Route;
use crate::proto::sse::{self, Event};
use crate::proto::translate::{self, ChatToMessages, MessagesToChat};
use crate::proto::usage::Usage;
use crate::upstream::{Asked, Streaming};

/// Books a call once, also when the caller goes away in the middle, or before there is an answer.
pub(crate) struct Booking<A: Access> {
    access: Arc<A>,
    tasks: TaskTracker,
    caller: Caller,
    route: Route,
    leave: Arc<A::Leave>,
    asked: Asked,
    /// As the provider's answer tells it; none before there is one.
    usage: Option<Usage>,
    booked: bool,
}

impl<A: Access> Booking<A> {
    pub(crate) fn new(
        access: Arc<A>,
        tasks: TaskTracker,
        caller: Caller,
        route: Route,
        leave: Arc<A::Leave>,
    ) -> Self {
        Self {
            access,
            tasks,
            caller,
            route,
            leave,
            asked: Asked::default(),
            usage: None,
            booked: false,
        }
    }

    /// What the provider is asked is noted here.
    pub(crate) fn asked(&self) -> Asked {
        self.asked.clone()
    }

    /// There is nothing to book: the provider did not answer.
    pub(crate) fn nothing_to_book(mut self) {
        self.booked = true;
    }

    /// Books what was used. It is done when this returns, and also when it is dropped before.
    async fn settle(&mut self) {
        if let Some(booking) = self.start() {
            // The task ends by itself; it can only fail by a panic, which is logged there.
            let _ = booking.await;
        }
    }

    fn start(&mut self) -> Option<tokio::task::JoinHandle<()>> {
        if std::mem::replace(&mut self.booked, true) {
            return None;
        }
        let usage = match self.usage {
            Some(usage) => usage,
            // Whoever was sent nothing is owed nothing.
            None => Usage {
                input: self.asked.tokens()?,
                ..Usage::default()
            },
        };
        let Route { provider, model } = &self.route;
        let record = CallRecord {
            provider: provider.name.clone(),
            model: model.clone(),
            usage,
            cost: provider.price(model).cost(&usage),
        };
        let (access, caller) = (Arc::clone(&self.access), self.caller.clone());
        let leave = Arc::clone(&self.leave);
        Some(self.tasks.spawn(async move {
            access.record(caller, record).await;
            drop(leave);
        }))
    }
}

impl<A: Access> Drop for Booking<A> {
    fn drop(&mut self) {
        self.start();
    }
}

/// An answer that was not streamed.
pub(crate) async fn whole<A: Access>(
    mut booking: Booking<A>,
    format: Format,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    let route = booking.route.clone();
    let unreadable = |reason: String| Fault::new(&route, FaultKind::Unreadable { reason });
    let from = route.provider.format();
    let answer: Value =
        serde_json::from_slice(&body).map_err(|error| unreadable(error.to_string()))?;
    if !answer.is_object() {
        return Err(unreadable("it is no JSON object".to_owned()));
    }
    booking.usage = Some(of_answer(from, &answer));
    booking.settle().await;
    let body = match (from, format) {
        (Format::Chat, Format::Messages) => translate::chat_to_messages(&answer).to_string().into(),
        (Format::Messages, Format::Chat) => translate::messages_to_chat(&answer, seconds())
            .to_string()
            .into(),
        _ => body,
    };
    let body = clean(body, &route);
    Ok(response(headers, "application/json", Body::from(body)))
}

/// An answer that is streamed.
pub(crate) fn stream<A: Access>(
    mut booking: Booking<A>,
    format: Format,
    wants_usage: bool,
    streaming: Streaming,
) -> Response {
    let route = booking.route.clone();
    let Streaming {
        headers,
        first,
        mut events,
        mut meter,
    } = streaming;
    let mut passing = Passing::new(&route, format, wants_usage);
    let body = async_stream::stream! {
        let mut waiting = first.into_iter();
        let fault = loop {
            let next = match waiting.next() {
                Some(seen) => Ok(Some(seen)),
                None => events.next().await.map(|event| event.map(|event| {
                    let seen = meter.observe(&event);
                    (event, seen)
                })),
            };
            booking.usage = Some(meter.usage());
            match next {
                Ok(Some((_, Seen::Error { code, message }))) => {
                    break Some(FaultKind::Status { code, message, retry_after: None });
                }
                Ok(Some((event, Seen::End))) => {
                    booking.settle().await;
                    for part in passing.end(Some(&event)) {
                        yield Ok::<_, std::convert::Infallible>(clean(part, &route));
                    }
                    break None;
                }
                Ok(Some((event, seen))) => match passing.part(&event, &seen) {
                    Ok(parts) => for part in parts {
                        yield Ok(clean(part, &route));
                    },
                    Err(reason) => break Some(FaultKind::Unreadable { reason }),
                },
                // The last word is missing, but everything was said.
                Ok(None) if meter.finished() => {
                    booking.settle().await;
                    for part in passing.end(None) {
                        yield Ok(clean(part, &route));
                    }
                    break None;
                }
                Ok(None) => break Some(FaultKind::CutOff),
                Err(kind) => break Some(kind),
            }
        };
        if let Some(kind) = fault {
            booking.settle().await;
            let refusal = Fault::new(&route, kind).refusal().to_agent(&booking.caller.agent);
            tracing::warn!(provider = %route.provider.name, error = %refusal.message, "an answer broke off");
            yield Ok(clean(refusal.event(format), &route));
        }
    };
    response(headers, "text/event-stream", Body::from_stream(body))
}

fn response(mut headers: HeaderMap, content_type: &'static str, body: Body) -> Response {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    *response.headers_mut() = headers;
    response
}

/// How events of one format leave in another.
enum Passing {
    /// As they came.
    AsTheyCame {
        usage: bool,
    },
    ToMessages(ChatToMessages),
    ToChat(MessagesToChat),
}

impl Passing {
    fn new(route: &Route, format: Format, wants_usage: bool) -> Self {
        match (route.provider.format(), format) {
            (Format::Chat, Format::Messages) => Self::ToMessages(ChatToMessages::new()),
            (Format::Messages, Format::Chat) => {
                Self::ToChat(MessagesToChat::new(seconds(), wants_usage))
            }
            (_, Format::Messages) => Self::AsTheyCame { usage: true },
            (_, Format::Chat) => Self::AsTheyCame { usage: wants_usage },
        }
    }

    fn part(&mut self, event: &Event, seen: &Seen) -> Result<Vec<Bytes>, String> {
        match self {
            // The caller did not ask for it; we did.
            Self::AsTheyCame { usage: false } if *seen == Seen::UsageOnly => Ok(Vec::new()),
            Self::AsTheyCame { .. } => Ok(vec![event.raw.clone()]),
            Self::ToMessages(translation) => translation
                .chunk(&event.data)
                .map_err(|error| error.to_string()),
            Self::ToChat(translation) => Ok(translation.event(&event.data)),
        }
    }

    fn end(&mut self, event: Option<&Event>) -> Vec<Bytes> {
        match (self, event) {
            (Self::AsTheyCame { .. }, event) => {
                event.map(|event| event.raw.clone()).into_iter().collect()
            }
            (Self::ToMessages(translation), _) => translation.finish(),
            (Self::ToChat(translation), Some(event)) => translation.event(&event.data),
            (Self::ToChat(translation), None) => translation.event(r#"{"type":"message_stop"}"#),
        }
    }
}

/// Bytes without the provider's key, should it have sent it back.
fn clean(bytes: Bytes, route: &Route) -> Bytes {
    let Some(key) = &route.provider.key else {
        return bytes;
    };
    match std::str::from_utf8(&bytes) {
        Ok(text) => match without_secret(text, Some(key.expose())) {
            std::borrow::Cow::Owned(cleaned) => cleaned.into(),
            std::borrow::Cow::Borrowed(_) => bytes,
        },
        Err(_) => {
            let text = String::from_utf8_lossy(&bytes);
            match without_secret(&text, Some(key.expose())) {
                std::borrow::Cow::Owned(_) => sse::encode(None, "{}"),
                std::borrow::Cow::Borrowed(_) => bytes,
            }
        }
    }
}

fn seconds() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
