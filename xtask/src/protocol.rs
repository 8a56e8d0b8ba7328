//! `docs/protocol.md`: the five planes as the code has them.
//!
//! Nothing of a message is written down a second time: the control plane is read from its schema,
//! the others from the doc comments, attributes and encoders of the types that are on the wire. What
//! the page says and the code does not is in [`PLANES`], a sentence a plane.

use std::fs;
use std::io;
use std::path::Path;

mod names;
mod rust;
mod schema;

use names::Encoder;
use rust::{Form, Source};

/// Where the page is, from the repository's root.
pub(crate) const PAGE: &str = "docs/protocol.md";

const HEAD: &str = "\
<!-- Made from the code by `cargo xtask protocol`. Change the code, then run it. -->

# Protocols

Quintet's parts speak five protocols, each called a plane. This page is made from the code that speaks them.

| plane | between | bytes |
|---|---|---|
| [control](#control-plane) | a client and the daemon | u32 big-endian length, protobuf; Unix socket or TCP |
| [agent](#agent-plane) | the daemon and an agent process | u32 little-endian length, JSON; Unix socket |
| [sandbox](#sandbox-plane) | the daemon and a worker | JSON text and binary frames over a WebSocket |
| [workspace](#workspace-plane) | a folder's master and its replicas | u32 little-endian length, bincode 1; Unix socket or WebSocket |
| [channel](#channel-plane) | the daemon and a browser | encrypted records over a WebSocket |
";

/// What of a plane's code goes onto the page, in order.
struct Plane {
    title: &'static str,
    parts: &'static [Part],
}

enum Part {
    /// A heading between parts.
    Heading(&'static str),
    /// A sentence of our own.
    Words(&'static str),
    /// A module's own documentation.
    Module(&'static str),
    /// Public numbers and texts of files; their values may name each other.
    Constants(&'static [&'static str]),
    /// Types of a file, as they are on the wire.
    Types(&'static str, Form, &'static [&'static str]),
    /// Messages whose names are in an encoder: the file of the types, that of the encoder, and for
    /// each type the function that encodes it.
    Encoded {
        types: &'static str,
        encoder: &'static str,
        of: &'static [(&'static str, Encoder)],
    },
    /// An enum whose names on the wire are given by a function of it.
    Named(&'static str, &'static str, &'static str),
    /// The requests that a function tells apart by name.
    Requests(&'static [(&'static str, &'static str)]),
}

const PLANES: &[Plane] = &[
    Plane {
        title: "Agent plane",
        parts: &[
            Part::Module("crates/agent/src/proto/mod.rs"),
            Part::Constants(&["crates/agent/src/proto/mod.rs"]),
            Part::Heading("Messages"),
            Part::Types(
                "crates/agent/src/proto/message.rs",
                Form::Json,
                &[
                    "CoordinatorToAgent",
                    "AgentToCoordinator",
                    "Init",
                    "InboundMessage",
                    "MessageData",
                    "Origin",
                    "LogEntry",
                    "FinishReason",
                    "Question",
                    "AskOption",
                    "AskOutcome",
                    "ApprovalRequest",
                    "ApprovalResult",
                ],
            ),
            Part::Types(
                "crates/agent/src/proto/element.rs",
                Form::Json,
                &["Element", "FileChangeKind", "TerminalStream"],
            ),
            Part::Types(
                "crates/agent/src/proto/usage.rs",
                Form::Json,
                &["TokenUsage"],
            ),
        ],
    },
    Plane {
        title: "Sandbox plane",
        parts: &[
            Part::Module("crates/sandbox/src/proto/mod.rs"),
            Part::Constants(&["crates/sandbox/src/proto/mod.rs"]),
            Part::Heading("Version 1: messages"),
            Part::Words(
                "Where two names are given, the first is the original protocol's and the second that of the \
                 released programs. Bytes are base64.",
            ),
            Part::Encoded {
                types: "crates/sandbox/src/proto/message.rs",
                encoder: "crates/sandbox/src/proto/encode.rs",
                of: &[
                    ("HubToWorker", Encoder::Method("encode")),
                    ("WorkerToHub", Encoder::Method("encode")),
                    (
                        "SnapshotRequest",
                        Encoder::Function("encode_snapshot_request"),
                    ),
                    ("SnapshotReply", Encoder::Function("encode_snapshot_reply")),
                ],
            },
            Part::Types(
                "crates/sandbox/src/proto/message.rs",
                Form::Json,
                &[
                    "ErrorMessage",
                    "FormerConnection",
                    "Load",
                    "Metadata",
                    "SnapshotInfo",
                ],
            ),
            Part::Heading("Version 2: frames"),
            Part::Module("crates/sandbox/src/proto/frame.rs"),
            Part::Constants(&["crates/sandbox/src/proto/frame.rs"]),
            Part::Types(
                "crates/sandbox/src/proto/frame.rs",
                Form::Json,
                &[
                    "FrameKind",
                    "Open",
                    "Opened",
                    "End",
                    "Outcome",
                    "FailureCode",
                    "JobInfo",
                    "Mirror",
                    "Mirrored",
                    "Entry",
                    "EntryKind",
                    "LeftOut",
                ],
            ),
        ],
    },
    Plane {
        title: "Workspace plane",
        parts: &[
            Part::Module("crates/workspace/src/proto/mod.rs"),
            Part::Module("crates/workspace/src/proto/message.rs"),
            Part::Constants(&["crates/workspace/src/proto/message.rs"]),
            Part::Heading("Messages"),
            Part::Words(
                "Fields in this order, without names. Integers are fixed-width little-endian, a \
                 text or list is preceded by a u64 count, an `Option` by a byte 0 or 1, an enum by \
                 its number as a u32.",
            ),
            Part::Types(
                "crates/workspace/src/proto/message.rs",
                Form::Positional,
                &["WireMessage", "WriteBackEntry", "WriteOperation"],
            ),
        ],
    },
    Plane {
        title: "Channel plane",
        parts: &[
            Part::Module("crates/channel/src/proto/mod.rs"),
            Part::Heading("Version 2"),
            Part::Module("crates/channel/src/proto/v2/mod.rs"),
            Part::Constants(&[
                "crates/channel/src/proto/v2/mod.rs",
                "crates/channel/src/proto/v2/record.rs",
                "crates/channel/src/proto/v2/message.rs",
            ]),
            Part::Types(
                "crates/channel/src/proto/v2/mod.rs",
                Form::Json,
                &["Refused"],
            ),
            Part::Heading("Version 2: pairing"),
            Part::Module("crates/channel/src/proto/v2/pair.rs"),
            Part::Heading("Version 2: resuming"),
            Part::Module("crates/channel/src/proto/v2/noise.rs"),
            Part::Heading("Version 2: records"),
            Part::Module("crates/channel/src/proto/v2/record.rs"),
            Part::Module("crates/channel/src/proto/v2/message.rs"),
            Part::Heading("Version 2: requests"),
            Part::Words("The `op` of a request is one of these."),
            Part::Requests(&[
                ("crates/runtime/src/channel/ops.rs", "serve"),
                ("crates/runtime/src/channel/workspace.rs", "serve"),
            ]),
            Part::Heading("Version 1"),
            Part::Module("crates/channel/src/proto/v1/mod.rs"),
            Part::Constants(&["crates/channel/src/proto/v1/mod.rs"]),
            Part::Named("crates/channel/src/proto/v1/mod.rs", "Code", "as_str"),
        ],
    },
];

const SCHEMA: &str = "crates/control/proto/quintet.proto";
const CONTROL_ERRORS: &str = "crates/control/src/proto/error.rs";

/// The page, made from the sources below `root`.
///
/// # Errors
/// When a source can't be read, or no longer has what the page shows: then [`PLANES`] has to follow.
pub(crate) fn render(root: &Path) -> io::Result<String> {
    let mut page = HEAD.to_owned();
    page.push_str("\n## Control plane\n\n");
    page.push_str(&schema::render(&read(root, SCHEMA)?).map_err(|what| broken(SCHEMA, &what))?);
    let errors = Source::parse(&read(root, CONTROL_ERRORS)?)
        .map_err(|error| broken(CONTROL_ERRORS, &error.to_string()))?;
    let codes = rust::types(&errors, Form::Json, &["ErrorCode"])
        .map_err(|what| broken(CONTROL_ERRORS, &what))?;
    page.push_str(&codes);
    for plane in PLANES {
        page.push_str(&format!("\n## {}\n\n", plane.title));
        for part in plane.parts {
            page.push_str(&render_part(root, part)?);
        }
    }
    Ok(squeezed(&page))
}

fn render_part(root: &Path, part: &Part) -> io::Result<String> {
    let parse = |file: &str| -> io::Result<Source> {
        Source::parse(&read(root, file)?).map_err(|error| broken(file, &error.to_string()))
    };
    match part {
        Part::Heading(text) => Ok(format!("\n### {text}\n\n")),
        Part::Words(text) => Ok(format!("{text}\n\n")),
        Part::Module(file) => Ok(parse(file)?.module_docs()),
        Part::Constants(files) => {
            let sources: io::Result<Vec<Source>> = files.iter().map(|file| parse(file)).collect();
            Ok(rust::constants(&sources?))
        }
        Part::Types(file, form, wanted) => {
            rust::types(&parse(file)?, *form, wanted).map_err(|what| broken(file, &what))
        }
        Part::Encoded { types, encoder, of } => {
            let (types, source) = (parse(types)?, parse(encoder)?);
            let mut text = String::new();
            for (name, how) in *of {
                text.push_str(
                    &names::encoded(&types, &source, name, *how)
                        .map_err(|what| broken(encoder, &what))?,
                );
            }
            Ok(text)
        }
        Part::Named(file, name, function) => {
            names::named(&parse(file)?, name, function).map_err(|what| broken(file, &what))
        }
        Part::Requests(functions) => {
            let mut requests = Vec::new();
            for (file, function) in *functions {
                requests.extend(
                    names::requests(&parse(file)?, function).map_err(|what| broken(file, &what))?,
                );
            }
            requests.sort();
            let listed: Vec<String> = requests.iter().map(|name| format!("`{name}`")).collect();
            Ok(format!("{}\n\n", listed.join(", ")))
        }
    }
}

fn read(root: &Path, file: &str) -> io::Result<String> {
    fs::read_to_string(root.join(file))
        .map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))
}

fn broken(file: &str, what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{file}: {what}; xtask/src/protocol.rs says what the page takes from it"),
    )
}

/// No more than one empty line in a row, and one newline at the end.
fn squeezed(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    let mut empty = 0;
    for line in text.lines() {
        empty = match line.is_empty() {
            true => empty + 1,
            false => 0,
        };
        if empty < 2 {
            page.push_str(line.trim_end());
            page.push('\n');
        }
    }
    while page.ends_with("\n\n") {
        page.pop();
    }
    page
}
