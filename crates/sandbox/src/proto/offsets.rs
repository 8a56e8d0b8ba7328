//! What an upload's chunks may be.

/// Why a chunk or a start is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OffsetError {
    /// A length below zero.
    #[error("total_size {0} is negative")]
    NegativeSize(i64),
    /// An offset below zero.
    #[error("offset {0} is negative")]
    Negative(i64),
    /// A gap, an overlap or a repetition.
    #[error("offset {offset} out of order: {expected} was next")]
    OutOfOrder {
        /// What came.
        offset: u64,
        /// What was due.
        expected: u64,
    },
    /// More than was announced.
    #[error("{end} bytes exceed total_size {total}")]
    Excess {
        /// Where the chunk ends.
        end: u64,
        /// What was announced.
        total: u64,
    },
}

/// The progress of one upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    received: u64,
    total: u64,
}

impl Progress {
    /// An upload of `total` bytes as the wire said it.
    pub fn announced(total: i64) -> Result<Self, OffsetError> {
        let total = u64::try_from(total).map_err(|_| OffsetError::NegativeSize(total))?;
        Ok(Self { received: 0, total })
    }

    /// An upload of `total` bytes that continues after `received`.
    pub const fn resumed(received: u64, total: u64) -> Self {
        Self { received, total }
    }

    /// Takes a chunk of `len` bytes that the wire says belongs at `offset`.
    pub fn chunk(&mut self, offset: i64, len: usize) -> Result<(), OffsetError> {
        let offset = u64::try_from(offset).map_err(|_| OffsetError::Negative(offset))?;
        if offset != self.received {
            return Err(OffsetError::OutOfOrder {
                offset,
                expected: self.received,
            });
        }
        self.append(len)
    }

    /// Takes `len` further bytes.
    pub fn append(&mut self, len: usize) -> Result<(), OffsetError> {
        let end = self
            .received
            .saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
        if end > self.total {
            return Err(OffsetError::Excess {
                end,
                total: self.total,
            });
        }
        self.received = end;
        Ok(())
    }

    /// Whether everything announced has arrived.
    pub const fn is_complete(&self) -> bool {
        self.received == self.total
    }

    /// What has arrived.
    pub const fn received(&self) -> u64 {
        self.received
    }
}
