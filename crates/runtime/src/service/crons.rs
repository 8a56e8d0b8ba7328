//! Schedules.

use quintet_control::wire::{CreateCronMsg, CronInfo, CronList, CronRunList};

use crate::daemon::Runtime;
use crate::refusal::Refusal;

impl Runtime {
    pub(super) async fn create_cron(&self, _: CreateCronMsg) -> Result<CronInfo, Refusal> {
        Err(Refusal::Internal("cron".into()))
    }
    pub(super) async fn delete_cron(&self, _: u64) -> Result<(), Refusal> {
        Err(Refusal::Internal("cron".into()))
    }
    pub(super) async fn list_crons(&self) -> Result<CronList, Refusal> {
        Err(Refusal::Internal("cron".into()))
    }
    pub(super) async fn list_cron_runs(&self, _: Option<u64>) -> Result<CronRunList, Refusal> {
        Err(Refusal::Internal("cron".into()))
    }
}
