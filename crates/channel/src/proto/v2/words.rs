//! Words that a person compares on two screens.

const LIST: &str = include_str!("words.txt");

/// The word of a byte.
pub fn word(byte: u8) -> &'static str {
    LIST.lines().nth(byte.into()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_byte_has_a_word_of_its_own() {
        let words: BTreeSet<_> = (0..=255).map(word).collect();
        assert_eq!(words.len(), 256);
        assert!(!words.contains(""));
        assert_eq!(LIST.lines().count(), 256);
    }
}
