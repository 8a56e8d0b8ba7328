//! What a cron says about occurrences that cannot be started as planned.

/// What becomes of occurrences that came while nobody could start them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum MissedPolicy {
    /// They are recorded as missed.
    #[default]
    Skip,
    /// They are recorded as missed but for the newest one, which is started.
    RunOnce,
}

impl MissedPolicy {
    /// The name on disk and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::RunOnce => "run_once",
        }
    }

    /// Reads the name back.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Skip, Self::RunOnce]
            .into_iter()
            .find(|policy| policy.as_str() == name)
    }
}

/// What becomes of an occurrence that comes while the run before it has not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum OverlapPolicy {
    /// It is skipped.
    #[default]
    Skip,
    /// It waits in the session's queue; one that comes while another waits is
    /// skipped, so that a slow skill does not pile up.
    Queue,
}

impl OverlapPolicy {
    /// The name on disk and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
        }
    }

    /// Reads the name back.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Skip, Self::Queue]
            .into_iter()
            .find(|policy| policy.as_str() == name)
    }
}
