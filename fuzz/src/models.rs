//! What model providers and callers of the gateway send.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use crate::proto::fault::{provider_words, without_secret};
use crate::proto::meter::{self, Meter};
use crate::proto::provider::{Provider, ProviderKind, Route};
use crate::proto::request::Request;
use crate::proto::sse::{Event, Splitter};
use crate::proto::translate::{
    ChatToMessages, MessagesToChat, chat_request, chat_to_messages, messages_request,
    messages_to_chat,
};
use crate::proto::{Format, retry};
use crate::secret::ApiKey;

/// Short, so that inputs get beyond it.
const LIMIT: usize = 512;

/// Byte 0 picks the size of the cuts; the rest is an answer's stream, a whole answer and a request.
pub fn models(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let events = any_cuts_give_the_same_events(bytes, usize::from(*cut));
    streams_are_translated_both_ways(&events);
    if let Ok(answer) = serde_json::from_slice::<Value>(bytes) {
        for format in [Format::Messages, Format::Chat] {
            let _ = meter::of_answer(format, &answer);
        }
        assert!(chat_to_messages(&answer)["content"].is_array());
        assert!(messages_to_chat(&answer, 0)["choices"].is_array());
    }
    requests_pass_but_for_the_model(bytes);
    let words = provider_words(bytes);
    assert!(
        !words.contains('\n') && words.len() <= 4096,
        "{} bytes",
        words.len()
    );
    assert!(!without_secret(&words, Some("sk-12345")).contains("sk-12345"));
    let text = String::from_utf8_lossy(bytes);
    let _ = retry::retry_after(Some(&text), None);
    let _ = retry::retry_after(None, Some(&text));
}

fn any_cuts_give_the_same_events(bytes: &[u8], cut: usize) -> Vec<Event> {
    let split = |cut: usize| {
        let mut splitter = Splitter::new(LIMIT);
        let mut events = Vec::new();
        for piece in bytes.chunks(cut) {
            splitter.push(piece);
            loop {
                match splitter.next_event() {
                    Ok(Some(event)) => events.push(event),
                    Ok(None) => break,
                    Err(_) => return (events, false),
                }
            }
        }
        events.extend(splitter.finish());
        (events, true)
    };
    let (events, whole) = split(cut.max(1));
    if whole {
        let (at_once, also_whole) = split(bytes.len().max(1));
        assert!(also_whole || bytes.len() > LIMIT);
        if also_whole {
            let plain = |events: &[Event]| -> Vec<(String, String)> {
                let pair = |event: &Event| (event.name.clone(), event.data.clone());
                events.iter().map(pair).collect()
            };
            assert_eq!(plain(&events), plain(&at_once));
        }
    }
    for event in &events {
        assert!(
            event.data.len() <= 3 * LIMIT,
            "bytes that are no text grow by three"
        );
    }
    events
}

fn streams_are_translated_both_ways(events: &[Event]) {
    let (mut to_messages, mut to_chat) = (ChatToMessages::new(), MessagesToChat::new(0, true));
    let mut meters = [
        Meter::new(Format::Messages, b""),
        Meter::new(Format::Chat, b""),
    ];
    let mut written = Vec::new();
    for event in events {
        for meter in &mut meters {
            let _ = meter.observe(event);
            let _ = meter.usage();
        }
        match to_messages.chunk(&event.data) {
            Ok(events) => written.extend(events),
            Err(_) => return,
        }
        written.extend(to_chat.event(&event.data));
    }
    written.extend(to_messages.finish());
    for bytes in written {
        let mut splitter = Splitter::new(usize::MAX);
        splitter.push(&bytes);
        let event = splitter
            .next_event()
            .expect("no limit")
            .expect("a whole event");
        assert_eq!(event.raw.len(), bytes.len(), "one event at a time");
        let json = serde_json::from_str::<Value>(&event.data);
        assert!(json.is_ok() || event.data == "[DONE]", "{:?}", event.data);
    }
}

fn route(kind: ProviderKind) -> Route {
    Route {
        provider: Arc::new(Provider {
            name: "mine".to_owned(),
            kind,
            base_url: "http://127.0.0.1:1".to_owned(),
            key: ApiKey::new("sk-mine"),
            models: vec!["model-1".to_owned()],
            prices: BTreeMap::new(),
        }),
        model: "model-1".to_owned(),
    }
}

fn requests_pass_but_for_the_model(bytes: &[u8]) {
    static ROUTES: OnceLock<[Route; 2]> = OnceLock::new();
    let [messages, chat] =
        ROUTES.get_or_init(|| [route(ProviderKind::Anthropic), route(ProviderKind::OpenAi)]);
    let Ok(request) = Request::read(Bytes::copy_from_slice(bytes)) else {
        return;
    };
    for (route, format) in [(messages, Format::Messages), (chat, Format::Chat)] {
        let body = request.body_for(route, format);
        let sent = Request::read(body).expect("what is sent on is a request");
        assert_eq!(sent.model.as_deref(), Some("model-1"));
        assert_eq!(sent.stream, request.stream);
    }
    if let Ok(value) = request.value() {
        assert!(chat_request(&value, chat)["messages"].is_array());
        assert!(messages_request(&value, messages)["messages"].is_array());
    }
}
