//! One word of a line, and what is known of it.

/// Stands for a word that the line does not have; no pattern can be written like this.
const COMPUTED: &str = "(computed)";

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policy) enum Piece {
    /// Text as it will be.
    Literal(String),
    /// `*` outside of quotes.
    Star,
    /// What the shell computes, within this word.
    Unknown,
    /// What the shell computes, and it may be several words or none.
    Splits,
    /// `$PWD` at the beginning of a word: the folder that the command runs in.
    Folder(Quoted),
}

/// One word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policy) struct Word {
    /// As it is written.
    pub(in crate::policy) raw: String,
    pub(in crate::policy) pieces: Vec<Piece>,
}

impl Word {
    /// A word that could be any words.
    pub(in crate::policy) fn anything() -> Self {
        Self {
            raw: COMPUTED.to_owned(),
            pieces: vec![Piece::Splits],
        }
    }

    /// A word that could be any one word.
    pub(in crate::policy) fn any_one() -> Self {
        Self {
            raw: COMPUTED.to_owned(),
            pieces: vec![Piece::Unknown],
        }
    }

    /// A word of exactly this text, which needs no quotes.
    pub(in crate::policy) fn literal(text: &str) -> Self {
        Self {
            raw: text.to_owned(),
            pieces: vec![Piece::Literal(text.to_owned())],
        }
    }

    /// What stands behind the first `=`, of a word that sets something.
    pub(in crate::policy) fn value(&self) -> Self {
        let Some((Piece::Literal(text), rest)) = self.pieces.split_first() else {
            return Self::anything();
        };
        let Some((_, value)) = text.split_once('=') else {
            return Self::anything();
        };
        let mut pieces = vec![Piece::Literal(value.to_owned())];
        pieces.extend_from_slice(rest);
        let raw = self.raw.split_once('=').map_or("", |(_, raw)| raw);
        Self {
            raw: raw.to_owned(),
            pieces,
        }
    }

    /// Whether it may become several words, whatever they are.
    pub(in crate::policy) fn injects(&self) -> bool {
        self.pieces.contains(&Piece::Splits)
    }

    /// Whether its text holds a substitution that is only text here: it is expanded where the text
    /// comes to be computed with.
    pub(in crate::policy) fn keeps_code(&self) -> bool {
        self.holds(|text| text.contains(['$', '`']))
    }

    /// The same inside the subscript of an array: `a[$(..)]`.
    pub(in crate::policy) fn keeps_subscript(&self) -> bool {
        self.holds(|text| {
            let subscript = text.split_once('[').map(|(_, subscript)| subscript);
            subscript.is_some_and(|it| it.contains(['$', '`']))
        })
    }

    fn holds(&self, found: impl Fn(&str) -> bool) -> bool {
        self.pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Literal(text) if found(text)))
    }

    /// The text that the command gets, where the line alone says it.
    pub(in crate::policy) fn exact(&self) -> Option<String> {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Literal(text) => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Whether it may become several words or none.
    pub(in crate::policy) fn splits(&self) -> bool {
        self.pieces.iter().any(|piece| {
            matches!(
                piece,
                Piece::Splits | Piece::Star | Piece::Folder(Quoted::No)
            )
        })
    }

    /// The path that it is, where the line alone says it; from the folder that the command runs in.
    /// `one_word`: the folder's own path is no several words.
    pub(in crate::policy) fn path(&self, one_word: bool) -> Option<String> {
        let (Some(Piece::Folder(quoted)), rest) = (self.pieces.first(), self.pieces.get(1..)?)
        else {
            return self.exact();
        };
        let rest = match rest {
            [] => "",
            [Piece::Literal(text)] if text.is_empty() || text.starts_with('/') => text,
            _ => return None,
        };
        (one_word || *quoted == Quoted::Yes).then(|| format!(".{rest}"))
    }

    /// The text that it certainly begins with.
    pub(in crate::policy) fn prefix(&self) -> &str {
        match self.pieces.first() {
            Some(Piece::Literal(text)) => text,
            _ => "",
        }
    }

    /// The text that it certainly ends with.
    pub(in crate::policy) fn suffix(&self) -> &str {
        match self.pieces.last() {
            Some(Piece::Literal(text)) => text,
            _ => "",
        }
    }
}

/// Whether something stands in double quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::policy) enum Quoted {
    No,
    Yes,
}

/// Whether a word has nothing in it yet.
pub(super) fn is_first(pieces: &[Piece]) -> bool {
    pieces
        .iter()
        .all(|piece| matches!(piece, Piece::Literal(text) if text.is_empty()))
}

pub(super) fn literal(pieces: &mut Vec<Piece>, c: char) {
    literal_text(pieces, c.encode_utf8(&mut [0; 4]));
}

/// Adds text; also an empty one, so that `''` is a word.
pub(super) fn literal_text(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        Some(Piece::Literal(last)) => last.push_str(text),
        _ => pieces.push(Piece::Literal(text.to_owned())),
    }
}
