//! Frames byte for byte, and every message of the schema through the generated code.

use std::sync::LazyLock;

use bytes::BytesMut;
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage, Value,
};
use quintet_control::FRAME_FORMAT;
use quintet_control::proto::{decode_reply, decode_request, encode_reply, encode_request};
use quintet_control::wire::*;
use serde::Deserialize;

/// The frames that other languages check themselves against too.
const VECTORS: &str = include_str!("../vectors/frames.json");

#[derive(Deserialize)]
struct Vector {
    side: String,
    name: String,
    frame: String,
    message: serde_json::Value,
}

pub(crate) fn schema() -> DescriptorPool {
    static SCHEMA: LazyLock<DescriptorPool> = LazyLock::new(|| {
        let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/quintet.bin"));
        DescriptorPool::decode(&bytes[..]).unwrap()
    });
    SCHEMA.clone()
}

fn message_type(name: &str) -> MessageDescriptor {
    schema()
        .get_message_by_name(&format!("crabtalk.protocol.{name}"))
        .unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn frame_of(message: &impl Message) -> Vec<u8> {
    let mut out = BytesMut::new();
    FRAME_FORMAT
        .encode(&message.encode_to_vec(), &mut out)
        .unwrap();
    out.to_vec()
}

/// Decodes as the generated type of that side and encodes again.
fn through_rust(side: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    match side {
        "client" => encode_request(&decode_request(payload).unwrap(), &mut out).unwrap(),
        _ => encode_reply(&decode_reply(payload).unwrap(), &mut out).unwrap(),
    }
    out.to_vec()
}

#[test]
fn every_vector_is_the_same_in_the_schema_and_in_rust_both_ways() {
    let vectors: Vec<Vector> = serde_json::from_str(VECTORS).unwrap();
    for vector in vectors {
        let frame = hex(&vector.frame);
        let payload = &frame[4..];
        let envelope = message_type(match vector.side.as_str() {
            "client" => "ClientMessage",
            _ => "ServerMessage",
        });
        let described = DynamicMessage::deserialize(envelope, &vector.message).unwrap();
        assert_eq!(frame_of(&described), frame, "{}: encoded", vector.name);
        let decoded = DynamicMessage::decode(described.descriptor(), payload).unwrap();
        assert_eq!(decoded, described, "{}: decoded", vector.name);
        assert_eq!(
            through_rust(&vector.side, payload),
            frame,
            "{}: in Rust",
            vector.name
        );
    }
}

#[test]
fn every_variant_of_both_envelopes_has_a_vector() {
    let vectors: Vec<Vector> = serde_json::from_str(VECTORS).unwrap();
    for (side, envelope, extension) in [
        ("client", "ClientMessage", "ClientExtension"),
        ("server", "ServerMessage", "ServerExtension"),
    ] {
        let has = |path: &[&str]| {
            vectors
                .iter()
                .filter(|vector| vector.side == side)
                .any(|vector| {
                    let found = path
                        .iter()
                        .try_fold(&vector.message, |message, name| message.get(name));
                    found.is_some()
                })
        };
        for field in message_type(envelope).fields() {
            assert!(has(&[field.name()]), "{side} {}", field.name());
        }
        for field in message_type(extension).fields() {
            assert!(has(&["extension", field.name()]), "{side} {}", field.name());
        }
    }
    for field in message_type("StreamEvent").fields() {
        let found = vectors
            .iter()
            .any(|vector| vector.message["stream"].get(field.name()).is_some());
        assert!(found, "{}", field.name());
    }
}

#[test]
fn the_frames_of_the_original_protocol() {
    let client: [(ClientMessage, &str); 5] = [
        (PingMsg {}.into(), "000000021a00"),
        (ReloadMsg {}.into(), "000000024200"),
        (GetConfigMsg {}.into(), "000000023200"),
        (SubscribeEventsMsg::default().into(), "000000024a00"),
        (
            StreamMsg {
                agent: "crab".into(),
                content: "hi".into(),
                sender: Some("root".into()),
                cwd: Some("/tmp".into()),
                ..StreamMsg::default()
            }
            .into(),
            "0000001812160a0463726162120268692204726f6f742a042f746d70",
        ),
    ];
    for (message, frame) in client {
        let mut out = BytesMut::new();
        encode_request(&message, &mut out).unwrap();
        assert_eq!(out, hex(frame));
        assert_eq!(decode_request(&out[4..]), Ok(message));
    }

    let event = |event: StreamEvent| ServerMessage::from(event);
    let server: [(ServerMessage, &str); 6] = [
        (Pong::default().into(), "000000022200"),
        (
            event(
                StreamStart {
                    agent: "crab".into(),
                    session: 1,
                    turn: None,
                }
                .into(),
            ),
            "0000000c120a0a080a04637261621001",
        ),
        (
            event(
                StreamEnd {
                    agent: "crab".into(),
                    ..StreamEnd::default()
                }
                .into(),
            ),
            "0000000a12083a060a0463726162",
        ),
        (
            event(
                ToolResult {
                    call_id: "c1".into(),
                    output: "x".into(),
                    duration_ms: 12,
                    is_error: false,
                }
                .into(),
            ),
            "0000000d120b2a090a026331120178180c",
        ),
        (event(ToolsComplete {}.into()), "0000000412023200"),
        (
            ErrorMsg {
                code: 404,
                message: "session 9 not found".into(),
            }
            .into(),
            "0000001a1a18089403121373657373696f6e2039206e6f7420666f756e64",
        ),
    ];
    for (message, frame) in server {
        let mut out = BytesMut::new();
        encode_reply(&message, &mut out).unwrap();
        assert_eq!(out, hex(frame));
        assert_eq!(decode_reply(&out[4..]), Ok(message));
    }
}

/// An old peer knows the numbers below 1000 only, and no message beyond what they reach.
#[test]
fn an_old_peer_sees_nothing_of_ours() {
    let (mut old, mut ours) = (Vec::new(), Vec::new());
    for message in schema().all_messages() {
        for field in message.fields() {
            let list = if field.number() < 1000 {
                &mut old
            } else {
                &mut ours
            };
            list.push(format!("{}.{}", message.name(), field.name()));
        }
    }
    let envelopes = ["ClientMessage.extension", "ServerMessage.extension"];
    assert!(
        envelopes
            .iter()
            .all(|name| ours.contains(&(*name).to_owned()))
    );
    let fields_of = |name: &str| {
        old.iter()
            .filter(|f| f.starts_with(&format!("{name}.")))
            .count()
    };
    // The tables of the original protocol: variants, events, and the fields of each message.
    for (message, count) in [
        ("ClientMessage", 15),
        ("ServerMessage", 11),
        ("StreamEvent", 8),
        ("SendMsg", 7),
        ("StreamMsg", 7),
        ("SessionsMsg", 0),
        ("SubscribeEventsMsg", 0),
        ("CreateCronMsg", 6),
        ("SendResponse", 3),
        ("SessionInfo", 7),
        ("AgentEventMsg", 8),
        ("Stats", 3),
        ("CronInfo", 7),
        ("StreamEnd", 2),
        ("AskUser", 1),
    ] {
        assert_eq!(fields_of(message), count, "{message}");
    }
}

fn random_text(rng: &mut TestRng) -> String {
    const SOME: [&str; 8] = ["", "a", "\0", "ß", "€uro", "🦀", "line\nline", "\u{10ffff}"];
    (0..rng.random_range(0..4))
        .map(|_| SOME[rng.random_range(0..SOME.len())])
        .collect()
}

fn random_number(rng: &mut TestRng) -> u64 {
    const EDGES: [u64; 7] = [0, 1, 127, 128, 16_384, u32::MAX as u64, u64::MAX];
    if rng.random_bool(0.5) {
        EDGES[rng.random_range(0..EDGES.len())]
    } else {
        rng.next_u64()
    }
}

fn random_value(field: &FieldDescriptor, rng: &mut TestRng) -> Value {
    match field.kind() {
        Kind::String => Value::String(random_text(rng)),
        Kind::Bytes => Value::Bytes(random_number(rng).to_le_bytes().to_vec().into()),
        Kind::Int32 => Value::I32(random_number(rng) as i32),
        Kind::Uint64 => Value::U64(random_number(rng)),
        Kind::Uint32 => Value::U32(random_number(rng) as u32),
        Kind::Bool => Value::Bool(rng.random_bool(0.5)),
        // Also numbers that a newer peer may send.
        Kind::Enum(_) => Value::EnumNumber(rng.random_range(0..9)),
        Kind::Message(message) => Value::Message(random_message(&message, rng)),
        other => panic!("the schema has no strategy for {other:?}"),
    }
}

fn random_message(descriptor: &MessageDescriptor, rng: &mut TestRng) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        if field
            .containing_oneof()
            .is_some_and(|group| group.fields().len() > 1)
            || rng.random_bool(0.3)
        {
            continue;
        }
        let value = if field.is_map() {
            // One entry: the order of several is nobody's promise.
            let entry = (MapKey::String("key".into()), Value::String("value".into()));
            Value::Map([entry].into())
        } else if field.is_list() {
            let items = rng.random_range(0..4);
            Value::List((0..items).map(|_| random_value(&field, rng)).collect())
        } else {
            random_value(&field, rng)
        };
        message.set_field(&field, value);
    }
    for group in descriptor.oneofs() {
        let choices: Vec<_> = group.fields().collect();
        let field = &choices[rng.random_range(0..choices.len())];
        if choices.len() > 1 {
            let value = random_value(field, rng);
            message.set_field(field, value);
        }
    }
    message
}

/// `variant` of `envelope` with anything in it.
fn holding(envelope: &str, variant: &FieldDescriptor, rng: &mut TestRng) -> DynamicMessage {
    let inner = random_value(variant, rng);
    let mut message = DynamicMessage::new(variant.parent_message().clone());
    message.set_field(variant, inner);
    if message.descriptor().name() == envelope {
        return message;
    }
    let mut outer = DynamicMessage::new(message_type(envelope));
    outer.set_field_by_name("extension", Value::Message(message));
    outer
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each case takes every variant of both envelopes once, which reaches every message.
    #[test]
    fn every_message_survives_the_generated_code(
        rng in Just(()).prop_perturb(|(), rng| rng),
    ) {
        let mut rng = rng;
        for (side, envelope, extension) in [
            ("client", "ClientMessage", "ClientExtension"),
            ("server", "ServerMessage", "ServerExtension"),
        ] {
            let (original, ours) = (message_type(envelope), message_type(extension));
            for variant in original.fields().chain(ours.fields()) {
                let message = holding(envelope, &variant, &mut rng);
                let frame = frame_of(&message);
                prop_assert_eq!(through_rust(side, &frame[4..]), frame, "{}", variant.name());
            }
        }
    }

    #[test]
    fn bytes_from_anywhere_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(message) = decode_request(&bytes) {
            prop_assert!(decode_request(&message.encode_to_vec()).is_ok());
        }
        if let Ok(message) = decode_reply(&bytes) {
            prop_assert!(decode_reply(&message.encode_to_vec()).is_ok());
        }
    }

    /// Damage to a good frame is an error or another message, never a panic.
    #[test]
    fn damaged_messages_decode_or_are_refused(
        rng in Just(()).prop_perturb(|(), rng| rng),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut rng = rng;
        let fields: Vec<_> = message_type("ServerMessage").fields().collect();
        let variant = &fields[rng.random_range(0..fields.len())];
        let mut bytes = holding("ServerMessage", variant, &mut rng).encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for bytes in [&bytes[..], &bytes[..at]] {
            prop_assert_eq!(decode_reply(bytes).ok(), ServerMessage::decode(bytes).ok());
        }
    }
}

#[test]
fn a_message_over_the_limit_is_not_encoded() {
    let large = "x".repeat(16 * 1024 * 1024);
    let chunk = StreamChunk {
        content: large.clone(),
    };
    for message in [
        ServerMessage::from(Config { config: large }),
        StreamEvent::from(chunk).into(),
    ] {
        let mut out = BytesMut::new();
        assert!(encode_reply(&message, &mut out).is_err());
        assert_eq!((out.len(), out.capacity()), (0, 0));
    }
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let hello = ClientHello {
        token: "hunter2".into(),
        ..ClientHello::default()
    };
    let config = SetConfigMsg {
        config: r#"{"api_key": "hunter2"}"#.into(),
    };
    let shown = format!(
        "{:?} {:?}",
        ClientMessage::from(hello),
        ClientMessage::from(config)
    );
    assert!(!shown.contains("hunter2"), "{shown}");
}
