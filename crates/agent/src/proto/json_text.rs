//! Text as a JSON string.
//!
//! Nearly all that agents say is text, and it is encoded twice, by the agent and for the journal.
//! Serde looks at each byte of it; here a block without anything to escape is copied.

/// Bytes that are looked at together.
const BLOCK: usize = 64;

/// Appends `text` with its quotes, byte for byte as serde writes it.
pub fn append_json_text(text: &str, out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    for block in text.as_bytes().chunks(BLOCK) {
        if is_plain(block) {
            out.extend_from_slice(block);
        } else {
            block.iter().for_each(|byte| append_escaped(*byte, out));
        }
    }
    out.push(b'"');
}

/// Whether a JSON string holds these bytes as they are.
pub(super) fn is_plain(bytes: &[u8]) -> bool {
    // Without an early end, so that many bytes are compared at a time.
    bytes.iter().fold(true, |plain, byte| {
        plain & (*byte >= 0x20) & (*byte != b'"') & (*byte != b'\\')
    })
}

fn append_escaped(byte: u8, out: &mut Vec<u8>) {
    let short = match byte {
        b'"' | b'\\' => byte,
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0x08 => b'b',
        0x0c => b'f',
        0x00..0x20 => {
            out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
            return;
        }
        _ => {
            out.push(byte);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_character_up_to_the_second_byte_is_as_serde_writes_it() {
        let text: String = ('\0'..'\u{800}').collect();
        let mut out = Vec::new();
        append_json_text(&text, &mut out);
        assert_eq!(out, serde_json::to_vec(&text).unwrap());
    }

    proptest! {
        #[test]
        fn any_text_is_as_serde_writes_it(text in "(?s).{0,300}") {
            let mut out = b"before".to_vec();
            append_json_text(&text, &mut out);
            let expected = [b"before".to_vec(), serde_json::to_vec(&text).unwrap()].concat();
            prop_assert_eq!(out, expected);
        }
    }
}
