//! Tokens and money, added up for a chart.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ops::{Answer, answered, args};
use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::sessions::usage::day_of;

/// The longest time that is looked back at.
const MAX_DAYS: i64 = 3660;

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum By {
    Day,
    Agent,
    Session,
}

#[derive(Deserialize)]
struct Report {
    by: By,
    days: i64,
}

#[derive(Default)]
struct Sum {
    input: u64,
    output: u64,
    cost: Decimal,
}

pub(super) async fn report(runtime: &Runtime, given: &Value) -> Answer {
    let Report { by, days } = args(given)?;
    let days = days.clamp(1, MAX_DAYS);
    let since = jiff::Timestamp::now().as_microsecond() - (days - 1) * 24 * 3600 * 1_000_000;
    let first_day = day_of(since);
    let sums = runtime
        .db
        .read(move |db| {
            // Money is never added up by SQLite, whose sums are floats.
            let mut statement = db.prepare_cached(
                "SELECT day, agent, session, input_tokens, output_tokens, cost FROM usage
                 WHERE day >= ?",
            )?;
            let mut rows = statement.query([first_day])?;
            let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
            while let Some(row) = rows.next()? {
                let key = match by {
                    By::Day => row.get(0)?,
                    By::Agent => row.get(1)?,
                    By::Session => row.get::<_, i64>(2)?.to_string(),
                };
                let cost: String = row.get(5)?;
                let cost: Decimal = cost
                    .parse()
                    .map_err(|_| Refusal::Internal(format!("cost {cost:?}")))?;
                let sum = sums.entry(key).or_default();
                sum.input = sum
                    .input
                    .saturating_add(row.get::<_, i64>(3)?.cast_unsigned());
                sum.output = sum
                    .output
                    .saturating_add(row.get::<_, i64>(4)?.cast_unsigned());
                sum.cost = sum.cost.saturating_add(cost);
            }
            Ok::<_, Refusal>(sums)
        })
        .await;
    answered(sums.map(|sums| {
        let rows: Vec<Value> = sums
            .into_iter()
            .map(|(key, sum)| {
                json!({
                    "key": key,
                    "input_tokens": sum.input,
                    "output_tokens": sum.output,
                    "cost": sum.cost.to_string(),
                })
            })
            .collect();
        json!({ "rows": rows })
    }))
}
