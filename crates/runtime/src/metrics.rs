//! Prometheus metrics: typed handles, one registry.

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What the daemon counts.
pub(crate) struct Metrics {
    registry: Registry,
    /// Turns that ended, by their finish reason.
    turns_ended: Family<[(&'static str, String); 1], Counter>,
    /// Journal rows since the start, by their kind: whatever happens is one.
    journal_rows: Family<[(&'static str, String); 1], Counter>,
    /// Readers of the journal.
    pub(crate) journal_readers: Gauge,
    /// Open control connections.
    pub(crate) control_connections: Gauge,
    /// Clients that were cut off for breaking a rule or a limit.
    pub(crate) control_cut: Counter,
    /// Turns that run.
    pub(crate) turns_running: Gauge,
    /// Messages that wait.
    pub(crate) messages_queued: Gauge,
    /// Open sessions.
    pub(crate) sessions_open: Gauge,
    /// Questions that wait for an answer.
    pub(crate) asks_pending: Gauge,
    /// Approvals that wait for an answer.
    pub(crate) approvals_pending: Gauge,
    /// Agent processes that are alive.
    pub(crate) agent_processes: Gauge,
    /// The newest journal number.
    pub(crate) journal_seq: Gauge,
    /// Size of the database file.
    pub(crate) journal_bytes: Gauge,
    /// Occurrences of schedules that were started.
    pub(crate) cron_started: Counter,
    /// Workers that are online.
    pub(crate) workers_online: Gauge,
    /// Commands that were sent to workers.
    pub(crate) worker_commands: Counter,
    /// Shells that were opened on workers, attachments included.
    pub(crate) worker_shells: Counter,
    /// Bytes of files that went to workers.
    pub(crate) worker_bytes_up: Counter,
    /// Bytes of files that came from workers.
    pub(crate) worker_bytes_down: Counter,
    /// Workers that were not let in.
    pub(crate) workers_refused: Counter,
    /// Rows of the workers' audit that could not be kept.
    pub(crate) audit_lost: Counter,
    /// Seconds since the daemon started.
    pub(crate) uptime_seconds: Gauge,
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new(version: &str) -> Arc<Self> {
        let mut registry = Registry::with_prefix("quintet");
        let mut counter = |name: &str, help: &str| {
            let metric = Counter::default();
            registry.register(name, help, metric.clone());
            metric
        };
        let control_cut = counter(
            "control_cut",
            "Clients cut off for breaking a rule or a limit",
        );
        let cron_started = counter("cron_started", "Occurrences of schedules that were started");
        let worker_commands = counter("worker_commands", "Commands that were sent to workers");
        let worker_shells = counter("worker_shells", "Shells that were opened on workers");
        let worker_bytes_up = counter("worker_bytes_up", "Bytes of files sent to workers");
        let worker_bytes_down = counter("worker_bytes_down", "Bytes of files sent by workers");
        let workers_refused = counter("workers_refused", "Workers that were not let in");
        let audit_lost = counter("audit_lost", "Rows of the workers' audit that were lost");
        let mut gauge = |name: &str, help: &str| {
            let metric = Gauge::default();
            registry.register(name, help, metric.clone());
            metric
        };
        let this = Self {
            turns_ended: Family::default(),
            journal_rows: Family::default(),
            journal_readers: gauge(
                "journal_readers",
                "Readers of the journal: clients that follow it, and the daemon's own",
            ),
            control_cut,
            cron_started,
            worker_commands,
            worker_shells,
            worker_bytes_up,
            worker_bytes_down,
            workers_refused,
            audit_lost,
            workers_online: gauge("workers_online", "Workers that are online"),
            control_connections: gauge("control_connections", "Open control connections"),
            turns_running: gauge("turns_running", "Turns that run"),
            messages_queued: gauge("messages_queued", "Messages that wait"),
            sessions_open: gauge("sessions_open", "Open sessions"),
            asks_pending: gauge("asks_pending", "Questions that wait for an answer"),
            approvals_pending: gauge("approvals_pending", "Approvals that wait for an answer"),
            agent_processes: gauge("agent_processes", "Agent processes that are alive"),
            journal_seq: gauge("journal_seq", "The newest journal number"),
            journal_bytes: gauge("journal_bytes", "Size of the database file in bytes"),
            uptime_seconds: gauge("uptime_seconds", "Seconds since the daemon started"),
            registry: Registry::default(),
        };
        registry.register(
            "build",
            "The running version",
            prometheus_client::metrics::info::Info::new(vec![("version", version.to_owned())]),
        );
        registry.register(
            "turns_ended",
            "Turns that ended, by their finish reason",
            this.turns_ended.clone(),
        );
        registry.register(
            "journal_rows",
            "Journal rows since the start, by their kind",
            this.journal_rows.clone(),
        );
        Arc::new(Self { registry, ..this })
    }

    /// Counts the end of a turn.
    pub(crate) fn turn_ended(&self, finish_reason: &str) {
        // A word of the agent's own making would be a label without a bound.
        let known = ["end_turn", "max_tokens", "cancelled", "error", "budget"];
        let label = if known.contains(&finish_reason) {
            finish_reason
        } else {
            "other"
        };
        self.turns_ended
            .get_or_create(&[("finish_reason", label.to_owned())])
            .inc();
    }

    /// Takes over how many journal rows of a kind there were. Kinds are names of our own: a bound.
    pub(crate) fn journal_rows(&self, kind: &str, count: u64) {
        let rows = self
            .journal_rows
            .get_or_create(&[("kind", kind.to_owned())]);
        rows.inc_by(count.saturating_sub(rows.get()));
    }

    /// The text that a scraper reads.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String has no error to report.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
