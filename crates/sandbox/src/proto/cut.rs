//! Output that has to fit into one v1 frame.

/// Turns bytes into text of at most `budget` bytes of JSON, cut with a marker when it is longer or
/// when `dropped` bytes are already missing. Bytes that are not UTF-8 become U+FFFD.
pub fn text_within(bytes: &[u8], dropped: u64, budget: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut spent = 0usize;
    let mut keep = text.len();
    for (at, c) in text.char_indices() {
        spent = spent.saturating_add(escaped_len(c));
        if spent > budget {
            keep = at;
            break;
        }
    }
    let cut = text.len().saturating_sub(keep);
    let missing = dropped.saturating_add(u64::try_from(cut).unwrap_or(u64::MAX));
    let mut out = match text.get(..keep) {
        Some(kept) if cut > 0 => kept.to_owned(),
        _ => text.into_owned(),
    };
    if missing > 0 {
        out.push_str(&format!("\n[output cut: {missing} bytes more]\n"));
    }
    out
}

/// What serde_json writes for a character.
const fn escaped_len(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => c.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::text_within;
    use proptest::prelude::*;

    #[test]
    fn whole_output_is_left_alone() {
        assert_eq!(text_within(b"hi\n", 0, 100), "hi\n");
        assert_eq!(text_within(b"\xff\xfeabc", 0, 100), "\u{fffd}\u{fffd}abc");
    }

    proptest! {
        #[test]
        fn the_encoded_text_stays_within_its_budget(bytes: Vec<u8>, budget in 0usize..200, dropped in 0u64..3) {
            let text = text_within(&bytes, dropped, budget);
            let marker = text.find("\n[output cut: ").unwrap_or(text.len());
            let encoded = serde_json::to_string(&text[..marker]).unwrap().len() - 2;
            prop_assert!(encoded <= budget);
            if dropped == 0 && serde_json::to_string(&*String::from_utf8_lossy(&bytes)).unwrap().len() - 2 <= budget {
                prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
            }
        }
    }
}
