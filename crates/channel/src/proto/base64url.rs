//! base64url: without padding out, tolerant in.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Encodes without padding.
pub fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes with or without padding, in either alphabet.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    if text.contains(['+', '/']) {
        let safe = text.replace('+', "-").replace('/', "_");
        return URL_SAFE_NO_PAD.decode(safe).ok();
    }
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Decodes exactly `N` bytes.
pub fn decode_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    decode(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_alphabet_with_or_without_padding() {
        for text in ["-_8", "-_8=", "+/8", "+/8="] {
            assert_eq!(decode(text).unwrap(), [0xfb, 0xff], "{text}");
        }
        assert_eq!(encode(&[0xfb, 0xff]), "-_8");
        assert_eq!(decode("*"), None);
        assert_eq!(decode_array::<3>("-_8"), None);
    }
}
