//! The workspace plane's messages: what decodes has exactly one encoding, the one it came in.

use bytes::Bytes;
use quintet_workspace::proto::manifest::Manifest;
use quintet_workspace::proto::{CheckedEntry, ContentHash, Operation, WireMessage, WorkspacePath};

/// Any payload of a frame; text is also a path, a hash and a manifest.
pub fn workspace(payload: &[u8]) {
    let shared = WireMessage::decode_shared(&Bytes::copy_from_slice(payload));
    let decoded = WireMessage::decode(payload);
    assert_eq!(decoded.as_ref().ok(), shared.as_ref().ok());
    if let Ok(message) = decoded {
        let encoded = message.encode().expect("what was decoded can be encoded");
        assert_eq!(encoded, payload);
        match &message {
            WireMessage::WriteBack { entries, .. } => {
                for entry in entries.iter().flat_map(CheckedEntry::check) {
                    stays_beneath_the_root(&entry.path);
                    if let Operation::Rename(to) = &entry.operation {
                        stays_beneath_the_root(to);
                    }
                }
            }
            WireMessage::ContentFetchResponse {
                size,
                chunk_manifest: Some(json),
                ..
            } => a_manifest_has_no_hole(json, *size),
            _ => {}
        }
    }
    if let Ok(text) = std::str::from_utf8(payload) {
        if let Ok(path) = WorkspacePath::parse(text) {
            stays_beneath_the_root(&path);
        }
        if let Some(hash) = ContentHash::parse(text) {
            assert_eq!(hash.to_string(), text);
        }
        let claimed = serde_json::from_str::<serde_json::Value>(text).ok();
        let claimed = claimed.and_then(|json| json.get("total_size")?.as_u64());
        a_manifest_has_no_hole(text, claimed.unwrap_or_default());
    }
}

fn stays_beneath_the_root(path: &WorkspacePath) {
    use std::path::{Component, Path};
    let normal = |part| matches!(part, Component::Normal(name) if !name.is_empty());
    assert!(Path::new(path.as_str()).components().all(normal), "{path}");
    assert!(!path.as_str().contains('\0'));
    for ancestor in path.ancestors() {
        assert!(path.is_beneath(&ancestor));
        assert!(ancestor.beneath_range().contains(&path.to_string()));
    }
}

fn a_manifest_has_no_hole(json: &str, size: u64) {
    let Ok(manifest) = Manifest::parse(json, size) else {
        return;
    };
    let mut end = 0;
    for chunk in &manifest.chunks {
        assert_eq!(chunk.offset, end);
        end += chunk.size;
    }
    assert_eq!((end, end), (manifest.total_size, size));
    let again = Manifest::parse(&manifest.to_json(), size).expect("as written");
    assert_eq!(again, manifest);
}
