//! The provider's end of a call: one request, its answer up to the first event.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use reqwest::{Client, Response};

use crate::proto::fault::{Fault, FaultKind, meant_by, provider_words, without_secret};
use crate::proto::meter::{Meter, Seen, estimated};
use crate::proto::provider::{Provider, Route};
use crate::proto::request::Request;
use crate::proto::retry;
use crate::proto::sse::{Event, Splitter};
use crate::proto::{Format, MAX_ANSWER, MAX_EVENT, translate};

/// The version of the Messages format that a caller without a word about it gets.
const MESSAGES_VERSION: &str = "2023-06-01";

/// How much of an error's body is read.
const MAX_ERROR_BODY: usize = 64 * 1024;

/// How much of a list of models is read.
const MAX_LIST: usize = 1024 * 1024;

/// Why there is no HTTP client.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no HTTPS client can be made: {0}; are the system's certificates installed?")]
pub struct ClientError(String);

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    pub(crate) connect: Duration,
    /// Silence in a stream.
    pub(crate) idle: Duration,
    /// An answer that is not streamed, up to its first byte.
    pub(crate) answer: Duration,
}

/// Makes calls.
#[derive(Debug)]
pub(crate) struct Upstream {
    deadlines: Deadlines,
    /// Made when it is first needed: it reads the system's certificates.
    secure: OnceLock<Result<Client, ClientError>>,
    /// For addresses without TLS, which need no certificates.
    plain: OnceLock<Result<Client, ClientError>>,
}

/// A caller's request, as every attempt of it is made.
pub(crate) struct Call {
    pub(crate) format: Format,
    pub(crate) request: Request,
    pub(crate) headers: HeaderMap,
}

/// What a provider was asked, in tokens by its length; nothing until there is a connection that the
/// request is written to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked(Arc<OnceLock<u64>>);

impl Asked {
    pub(crate) fn tokens(&self) -> Option<u64> {
        self.0.get().copied()
    }

    /// A body that is noted when it is written.
    fn note(self, body: Bytes) -> reqwest::Body {
        let written = async move {
            // Once is enough: an attempt asks once.
            let _ = self.0.set(estimated(&body));
            Ok::<_, Infallible>(body)
        };
        reqwest::Body::wrap_stream(stream::once(written))
    }
}

/// A provider's answer.
pub(crate) enum Answer {
    Whole { headers: HeaderMap, body: Bytes },
    Stream(Streaming),
}

/// A stream whose first event has been seen.
pub(crate) struct Streaming {
    pub(crate) headers: HeaderMap,
    /// What came up to and with the first part.
    pub(crate) first: Vec<(Event, Seen)>,
    pub(crate) events: Events,
    pub(crate) meter: Meter,
}

impl Upstream {
    pub(crate) fn new(deadlines: Deadlines) -> Self {
        Self {
            deadlines,
            secure: OnceLock::new(),
            plain: OnceLock::new(),
        }
    }

    /// Makes one attempt.
    pub(crate) async fn ask(
        &self,
        route: &Route,
        call: &Call,
        asked: Asked,
    ) -> Result<Answer, Fault> {
        self.attempt(route, call, asked)
            .await
            .map_err(|kind| Fault::new(route, without_key(kind, route)))
    }

    async fn attempt(&self, route: &Route, call: &Call, asked: Asked) -> Result<Answer, FaultKind> {
        let to = route.provider.format();
        let body = body(route, call)?;
        let streams = call.request.stream;
        let patience = match streams {
            true => self.deadlines.idle,
            false => self.deadlines.answer,
        };
        let sending = self
            .client(&route.provider)?
            .post(route.provider.endpoint())
            .headers(headers(route, call)?)
            .header(header::CONTENT_LENGTH, body.len())
            .body(asked.note(body.clone()))
            .send();
        let response = tokio::time::timeout(patience, sending)
            .await
            .map_err(|_| FaultKind::Silent { after: patience })?
            .map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let headers = passed_back(response.headers(), route);
        if !streams {
            let body = self.whole(response, MAX_ANSWER).await?;
            return Ok(Answer::Whole { headers, body });
        }
        let is_stream = response
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.starts_with("text/event-stream"));
        if !is_stream {
            return Err(FaultKind::Unreadable {
                reason: "it is no event stream".to_owned(),
            });
        }
        let mut events = Events {
            body: response.bytes_stream().boxed(),
            splitter: Splitter::new(MAX_EVENT),
            idle: self.deadlines.idle,
            ended: false,
        };
        let mut meter = Meter::new(to, &body);
        let mut first = Vec::new();
        // An error may still be the first word: until then the call can be made again.
        loop {
            let Some(event) = events.next().await? else {
                return Err(FaultKind::CutOff);
            };
            match meter.observe(&event) {
                Seen::Error { code, message } => {
                    return Err(FaultKind::Status {
                        code,
                        message,
                        retry_after: None,
                    });
                }
                // Comments of a provider that lets us wait are worth nothing to a caller that
                // has no answer yet.
                Seen::Quiet => {}
                seen => {
                    first.push((event, seen));
                    break;
                }
            }
        }
        Ok(Answer::Stream(Streaming {
            headers,
            first,
            events,
            meter,
        }))
    }

    /// The first model that a provider lists: the default of one that has none of its own.
    pub(crate) async fn first_model(&self, provider: &Provider) -> Option<String> {
        let mut request = self
            .client(provider)
            .ok()?
            .get(provider.models_endpoint())
            .timeout(self.deadlines.connect);
        if let Some(key) = &provider.key {
            request = request.bearer_auth(key.expose());
        }
        let response = request.send().await.ok()?.error_for_status().ok()?;
        let body = self.whole(response, MAX_LIST).await.ok()?;
        let list: serde_json::Value = serde_json::from_slice(&body).ok()?;
        list.pointer("/data/0/id")?.as_str().map(str::to_owned)
    }

    fn client(&self, provider: &Provider) -> Result<&Client, FaultKind> {
        let secure = provider.base_url.starts_with("https://");
        let client = if secure {
            self.secure.get_or_init(|| self.build(secure))
        } else {
            self.plain.get_or_init(|| self.build(secure))
        };
        client.as_ref().map_err(|error| FaultKind::Unreachable {
            reason: error.to_string(),
        })
    }

    fn build(&self, secure: bool) -> Result<Client, ClientError> {
        // The first one in the process counts; whichever it is, it is the only one we link.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .connect_timeout(self.deadlines.connect)
            // A redirect would carry the key to another place.
            .redirect(reqwest::redirect::Policy::none())
            // Reading the environment is the binary's affair.
            .no_proxy()
            .user_agent(concat!("quintet/", env!("CARGO_PKG_VERSION")));
        let builder = match secure {
            true => builder,
            false => builder.tls_certs_only([]),
        };
        builder
            .build()
            .map_err(|error| ClientError(error.to_string()))
    }

    async fn refused(&self, response: Response) -> FaultKind {
        let text = |name: &str| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let asked = text("retry-after");
        let retry_after = retry::retry_after(asked.as_deref(), text("retry-after-ms").as_deref())
            .or_else(|| until(asked.as_deref()?, SystemTime::now()));
        let code = response.status().as_u16();
        // Its words are worth having; that they can't be had changes nothing.
        let body = self.whole(response, MAX_ERROR_BODY).await;
        let body = body.unwrap_or_default();
        FaultKind::Status {
            code: meant_by(code, &body),
            message: provider_words(&body),
            retry_after,
        }
    }

    async fn whole(&self, response: Response, limit: usize) -> Result<Bytes, FaultKind> {
        let mut body = BytesMut::new();
        let mut parts = response.bytes_stream();
        let idle = self.deadlines.idle;
        while let Some(part) = tokio::time::timeout(idle, parts.next())
            .await
            .map_err(|_| FaultKind::Silent { after: idle })?
        {
            let part = part.map_err(|_| FaultKind::CutOff)?;
            if body.len().saturating_add(part.len()) > limit {
                return Err(FaultKind::Unreadable {
                    reason: format!("it is larger than {limit} bytes"),
                });
            }
            body.extend_from_slice(&part);
        }
        Ok(body.freeze())
    }
}

/// The events of an answer. Dropping it ends the call.
pub(crate) struct Events {
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    splitter: Splitter,
    idle: Duration,
    ended: bool,
}

impl Events {
    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, FaultKind> {
        loop {
            let event = self.splitter.next_event();
            if let Some(event) = event.map_err(|error| FaultKind::Unreadable {
                reason: error.to_string(),
            })? {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(self.splitter.finish());
            }
            match tokio::time::timeout(self.idle, self.body.next()).await {
                Err(_) => return Err(FaultKind::Silent { after: self.idle }),
                Ok(Some(Ok(part))) => self.splitter.push(&part),
                Ok(Some(Err(_))) => return Err(FaultKind::CutOff),
                Ok(None) => self.ended = true,
            }
        }
    }
}

/// How long it is to the date of a header; nothing when it has passed.
fn until(date: &str, now: SystemTime) -> Option<Duration> {
    let date = httpdate::parse_http_date(date.trim()).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

fn body(route: &Route, call: &Call) -> Result<Bytes, FaultKind> {
    let to = route.provider.format();
    if to == call.format {
        return Ok(call.request.body_for(route, to));
    }
    let request = call.request.value().map_err(|error| FaultKind::Status {
        code: 400,
        message: error.to_string(),
        retry_after: None,
    })?;
    let translated = match to {
        Format::Chat => translate::chat_request(&request, route),
        Format::Messages => translate::messages_request(&request, route),
    };
    Ok(translated.to_string().into())
}

fn headers(route: &Route, call: &Call) -> Result<HeaderMap, FaultKind> {
    let to = route.provider.format();
    let mut headers = HeaderMap::new();
    if to == call.format {
        for (name, value) in &call.headers {
            if ["anthropic-", "openai-", "idempotency-key"]
                .iter()
                .any(|prefix| name.as_str().starts_with(prefix))
            {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    let accept = match call.request.stream {
        true => "text/event-stream",
        false => "application/json",
    };
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    if to == Format::Messages {
        headers
            .entry("anthropic-version")
            .or_insert(HeaderValue::from_static(MESSAGES_VERSION));
    }
    if let Some(key) = &route.provider.key {
        let (name, value) = match to {
            Format::Messages => (
                HeaderName::from_static("x-api-key"),
                key.expose().to_owned(),
            ),
            Format::Chat => (header::AUTHORIZATION, format!("Bearer {}", key.expose())),
        };
        let mut value = HeaderValue::try_from(value).map_err(|_| FaultKind::Status {
            code: 401,
            message: "the key has characters that no header can hold".to_owned(),
            retry_after: None,
        })?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// What a caller gets of a provider's headers: limits and ids.
fn passed_back(headers: &HeaderMap, route: &Route) -> HeaderMap {
    let secret = route.provider.key.as_ref().map(|key| key.expose());
    headers
        .iter()
        .filter(|(name, _)| {
            let name = name.as_str();
            ["request-id", "x-request-id"].contains(&name)
                || ["anthropic-", "openai-", "x-ratelimit-"]
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
        })
        .filter(|(_, value)| {
            let text = value.to_str().unwrap_or_default();
            !secret.is_some_and(|secret| text.contains(secret))
        })
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn unreachable(error: reqwest::Error) -> FaultKind {
    let error = error.without_url();
    // The innermost reason is what a person understands: "connection refused".
    let mut reason = error.to_string();
    let mut inner: Option<&dyn std::error::Error> = std::error::Error::source(&error);
    while let Some(source) = inner {
        reason = source.to_string();
        inner = source.source();
    }
    FaultKind::Unreachable { reason }
}

fn without_key(kind: FaultKind, route: &Route) -> FaultKind {
    let secret = route.provider.key.as_ref().map(|key| key.expose());
    let clean = |text: String| without_secret(&text, secret).into_owned();
    match kind {
        FaultKind::Status {
            code,
            message,
            retry_after,
        } => FaultKind::Status {
            code,
            message: clean(message),
            retry_after,
        },
        FaultKind::Unreachable { reason } => FaultKind::Unreachable {
            reason: clean(reason),
        },
        FaultKind::Unreadable { reason } => FaultKind::Unreadable {
            reason: clean(reason),
        },
        kind => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_waited_for() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        let wait = |date| until(date, now).map(|wait| wait.as_secs());
        assert_eq!(wait("Wed, 21 Oct 2026 07:28:30 GMT"), Some(30));
        assert_eq!(wait("Wed, 21 Oct 2026 07:00:00 GMT"), Some(0));
        assert_eq!(wait("tomorrow"), None);
    }
}
