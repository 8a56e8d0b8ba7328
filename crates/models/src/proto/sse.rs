//! Server-sent events, cut out of a byte stream and kept as the bytes they were.

use bytes::{Buf, Bytes, BytesMut};

const BOM: &[u8] = "\u{feff}".as_bytes();

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its bytes, the empty line at its end included.
    pub raw: Bytes,
    /// The `event` field, empty where there is none.
    pub name: String,
    /// The `data` lines, joined. Empty for a comment or a stray empty line.
    pub data: String,
}

/// An event is larger than the limit; the stream can't be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {limit} bytes")]
pub struct EventTooLarge {
    /// The limit.
    pub limit: usize,
}

/// Cuts a byte stream into events. Holds one unfinished event at the most.
#[derive(Debug)]
pub struct Splitter {
    buffer: BytesMut,
    /// Everything before was looked at.
    at: usize,
    line_start: usize,
    limit: usize,
    begun: bool,
}

impl Splitter {
    /// For events of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            at: 0,
            line_start: 0,
            limit,
            begun: false,
        }
    }

    /// Adds bytes. Take all events out before the next call, or the buffer grows.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole event; `None` when more bytes are needed.
    pub fn next_event(&mut self) -> Result<Option<Event>, EventTooLarge> {
        if !self.begun {
            if self.buffer.len() < BOM.len() && BOM.starts_with(&self.buffer) {
                return Ok(None);
            }
            if self.buffer.starts_with(BOM) {
                self.buffer.advance(BOM.len());
            }
            self.begun = true;
        }
        while let Some(byte) = self.buffer.get(self.at) {
            let line_end = self.at;
            let next = line_end.saturating_add(1);
            let after = match (byte, self.buffer.get(next)) {
                (b'\n', _) => next,
                (b'\r', Some(b'\n')) => next.saturating_add(1),
                (b'\r', Some(_)) => next,
                // A line feed may follow.
                (b'\r', None) => break,
                _ => {
                    self.at = next;
                    continue;
                }
            };
            let is_empty = line_end == self.line_start;
            self.at = after;
            self.line_start = after;
            if is_empty {
                return self.cut(after).map(Some);
            }
        }
        if self.buffer.len() > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        Ok(None)
    }

    /// What is left at the end of the stream, where it holds data: some servers leave out the
    /// last empty line.
    pub fn finish(&mut self) -> Option<Event> {
        let rest = self.buffer.split().freeze();
        self.at = 0;
        self.line_start = 0;
        let event = parse(rest);
        (!event.data.is_empty()).then_some(event)
    }

    fn cut(&mut self, end: usize) -> Result<Event, EventTooLarge> {
        let raw = self.buffer.split_to(end).freeze();
        self.at = 0;
        self.line_start = 0;
        if raw.len() > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        Ok(parse(raw))
    }
}

fn parse(raw: Bytes) -> Event {
    let mut name = String::new();
    let mut data: Option<String> = None;
    {
        let text = String::from_utf8_lossy(&raw);
        for line in text.split(['\n', '\r']) {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut name),
                "data" => match &mut data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => data = Some(value.to_owned()),
                },
                // Comments, ids and fields of later versions.
                _ => {}
            }
        }
    }
    Event {
        raw,
        name,
        data: data.unwrap_or_default(),
    }
}

/// An event as bytes; `data` is one line.
pub fn encode(name: Option<&str>, data: &str) -> Bytes {
    match name {
        Some(name) => format!("event: {name}\ndata: {data}\n\n").into(),
        None => format!("data: {data}\n\n").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(parts: &[&[u8]]) -> Vec<(String, String)> {
        let mut splitter = Splitter::new(1024);
        let mut found = Vec::new();
        for part in parts {
            splitter.push(part);
            while let Some(event) = splitter.next_event().unwrap() {
                found.push((event.name, event.data));
            }
        }
        found.extend(splitter.finish().map(|event| (event.name, event.data)));
        found
    }

    const STREAM: &str = "\u{feff}event: a\ndata: {\"x\": 1}\n\n: comment\n\ndata:one\r\ndata: two\r\n\r\nevent: \u{20ac}\rdata: last\r\r";

    #[test]
    fn every_split_gives_the_same_events() {
        let bytes = STREAM.as_bytes();
        let whole = events(&[bytes]);
        let expected = [
            ("a", "{\"x\": 1}"),
            ("", ""),
            ("", "one\ntwo"),
            ("\u{20ac}", "last"),
        ];
        assert_eq!(
            whole,
            expected.map(|(name, data)| (name.to_owned(), data.to_owned()))
        );
        for at in 0..=bytes.len() {
            assert_eq!(
                events(&[&bytes[..at], &bytes[at..]]),
                whole,
                "split at {at}"
            );
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(events(&single), whole);
    }

    #[test]
    fn an_endless_event_is_refused_before_it_is_held() {
        let mut splitter = Splitter::new(100);
        splitter.push(b"data: ");
        assert_eq!(splitter.next_event(), Ok(None));
        splitter.push(&[b'x'; 100]);
        assert_eq!(splitter.next_event(), Err(EventTooLarge { limit: 100 }));
        let mut splitter = Splitter::new(100);
        splitter.push(format!("data: {}\n\n", "x".repeat(100)).as_bytes());
        assert_eq!(splitter.next_event(), Err(EventTooLarge { limit: 100 }));
    }

    #[test]
    fn what_is_encoded_is_one_event() {
        let bytes = encode(Some("error"), "{}");
        let mut splitter = Splitter::new(100);
        splitter.push(&bytes);
        let event = splitter.next_event().unwrap().unwrap();
        assert_eq!((event.name.as_str(), event.data.as_str()), ("error", "{}"));
        assert_eq!(event.raw, bytes);
    }

    proptest! {
        /// Whatever comes, in whatever parts: nothing is lost or changed on its way through.
        #[test]
        fn raw_bytes_pass_unchanged(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'\r'), Just(b':')], 0..300),
            size in 1usize..40,
        ) {
            let mut splitter = Splitter::new(1024);
            let mut passed = Vec::new();
            for part in bytes.chunks(size) {
                splitter.push(part);
                while let Some(event) = splitter.next_event().unwrap() {
                    passed.extend_from_slice(&event.raw);
                }
            }
            passed.extend_from_slice(&splitter.buffer);
            let expected = bytes.strip_prefix(BOM).unwrap_or(&bytes);
            prop_assert_eq!(passed, expected);
        }
    }
}
