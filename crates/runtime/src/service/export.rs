//! An exported session in parts, each of which fits in a frame.

use quintet_control::wire::SessionExport;

/// The largest part of an export.
const EXPORT_PART: usize = 8 << 20;

/// An export that is larger than a frame may be.
pub(super) struct InParts {
    pub(super) session: u64,
    pub(super) text: String,
}

impl InParts {
    /// The part from a byte on; `None` when it is none of this session's export.
    pub(super) fn part(&self, session: u64, from: u64) -> Option<SessionExport> {
        let from = usize::try_from(from).ok()?;
        let rest = self.text.get(from..).filter(|_| session == self.session)?;
        let part = &rest[..rest.floor_char_boundary(EXPORT_PART)];
        Some(SessionExport {
            export: part.to_owned(),
            more: part.len() < rest.len(),
        })
    }
}
