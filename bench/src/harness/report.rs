//! Results as a table for people and as JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

use super::stats::Spread;

/// One contender's result in one race.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) case: String,
    pub(super) variant: String,
    pub(super) contender: &'static str,
    pub(super) unit: &'static str,
    pub(super) rounds: usize,
    pub(super) rate: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_per_second: Option<Spread>,
    /// Our rate divided by this contender's, round by round; above 1 ours is faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ours_to_this: Option<Spread>,
}

/// Writes one object a line.
pub(super) fn json_lines(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    for row in rows {
        writeln!(out, "{}", serde_json::to_string(row)?)?;
    }
    Ok(())
}

/// Writes the rows of one race.
pub(super) fn table(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let title = format!("{} {}, {}", first.case, first.variant, first.unit);
    writeln!(
        out,
        "\n{title:<46} {:>9} {:>9} {:>9}  {:>9}   ours/this (min median max)",
        "min", "median", "max", "bytes/s"
    )?;
    for row in rows {
        let rate = row.rate;
        let bytes = row
            .bytes_per_second
            .map_or_else(String::new, |b| short(b.median));
        let ratio = row.ours_to_this.map_or_else(String::new, |r| {
            format!("{:6.2} {:6.2} {:6.2}", r.min, r.median, r.max)
        });
        let line = format!(
            "  {:<44} {:>9} {:>9} {:>9}  {bytes:>9}   {ratio}",
            row.contender,
            short(rate.min),
            short(rate.median),
            short(rate.max),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Three digits and a unit: `12.3 k`, `4.56 M`.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value {
        v if v >= 1e9 => (v / 1e9, " G"),
        v if v >= 1e6 => (v / 1e6, " M"),
        v if v >= 1e3 => (v / 1e3, " k"),
        v => (v, ""),
    };
    let digits = match scaled {
        s if s >= 100.0 => 0,
        s if s >= 10.0 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown: Vec<String> = [0.5, 7.0, 999.0, 1_234.0, 56_780.0, 4.5e8, 2e9]
            .into_iter()
            .map(short)
            .collect();
        assert_eq!(
            shown,
            ["0.50", "7.00", "999", "1.23 k", "56.8 k", "450 M", "2.00 G"]
        );
    }
}
