//! Both sides of a stream's credit, see [`super::frame`].

use super::frame::{INITIAL_CREDIT, cost};

/// What a sender may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendCredit(u64);

impl Default for SendCredit {
    fn default() -> Self {
        Self(u64::from(INITIAL_CREDIT))
    }
}

impl SendCredit {
    /// Adds a grant.
    pub fn grant(&mut self, amount: u32) {
        self.0 = self.0.saturating_add(u64::from(amount));
    }

    /// The largest payload a frame may have now, at most `want`; 0 means wait.
    pub fn room(self, want: usize) -> usize {
        usize::try_from(self.0.saturating_sub(u64::from(super::frame::FRAME_COST)))
            .unwrap_or(usize::MAX)
            .min(want)
    }

    /// Notes a frame of `len` bytes that [`Self::room`] allowed.
    pub fn spend(&mut self, len: usize) {
        self.0 = self.0.saturating_sub(u64::from(cost(len)));
    }
}

/// A sender went beyond its credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent beyond its credit")]
pub struct OverCredit;

/// What a receiver has granted and not yet seen or given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveCredit {
    granted: u64,
    taken: u64,
    window: u64,
    /// Whether more than the initial credit was granted, where the window is wider.
    opened: bool,
}

impl ReceiveCredit {
    /// A receiver that lets `window` be in flight, once it has granted it.
    pub fn new(window: u32) -> Self {
        Self {
            granted: u64::from(INITIAL_CREDIT),
            taken: 0,
            window: u64::from(window.max(INITIAL_CREDIT)),
            opened: window <= INITIAL_CREDIT,
        }
    }

    /// The grant that opens the window, if it is wider than the initial one. Without it the window
    /// opens with the first frame that is taken: most streams carry less than the initial credit.
    pub fn open(&mut self) -> Option<u32> {
        if std::mem::replace(&mut self.opened, true) {
            return None;
        }
        let more = self.window.saturating_sub(u64::from(INITIAL_CREDIT));
        self.granted = self.granted.saturating_add(more);
        u32::try_from(more).ok().filter(|more| *more > 0)
    }

    /// A frame of `len` bytes arrived.
    pub fn arrived(&mut self, len: usize) -> Result<(), OverCredit> {
        let charge = u64::from(cost(len));
        self.granted = self.granted.checked_sub(charge).ok_or(OverCredit)?;
        Ok(())
    }

    /// The reader took a frame of `len` bytes. Returns what to grant, in steps of a quarter of
    /// the window, so that grants are few.
    pub fn taken(&mut self, len: usize) -> Option<u32> {
        self.taken = self.taken.saturating_add(u64::from(cost(len)));
        let opening = self.open();
        if opening.is_none() && self.taken < self.window / 4 {
            return None;
        }
        let opening = opening.unwrap_or(0);
        let grant = u32::try_from(self.taken)
            .unwrap_or(u32::MAX)
            .min(u32::MAX.saturating_sub(opening));
        self.taken = self.taken.saturating_sub(u64::from(grant));
        self.granted = self.granted.saturating_add(u64::from(grant));
        Some(grant.saturating_add(opening))
    }
}
