//! Results as a table for people and as JSON for programs.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::stats::Spread;
use crate::cases::load::Load;

/// What came out for one contender of one race.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Measured(Row),
    Failed(Failure),
    /// Not of a race.
    Load(Load),
}

/// One contender's result in one race.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) variant: String,
    pub(crate) contender: String,
    pub(crate) unit: String,
    pub(crate) rounds: usize,
    pub(crate) rate: Spread,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<Spread>,
    /// Our rate divided by this contender's, round by round; above 1 ours is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ours_to_this: Option<Spread>,
}

/// A peer that did not do the work.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) case: String,
    pub(crate) variant: String,
    pub(crate) contender: String,
    pub(crate) failed: String,
}

/// Writes one object a line.
pub(super) fn json_lines(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    for line in lines {
        writeln!(out, "{}", serde_json::to_string(line)?)?;
    }
    Ok(())
}

/// Writes the lines of one race.
pub(super) fn table(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    let Some(Line::Measured(first)) = lines.first() else {
        return Ok(());
    };
    let title = format!("{} {}, {}", first.case, first.variant, first.unit);
    writeln!(
        out,
        "\n{title:<46} {:>9} {:>9} {:>9}  {:>9}   ours/this (min median max)",
        "min", "median", "max", "bytes/s"
    )?;
    for line in lines {
        let row = match line {
            Line::Measured(row) => row,
            Line::Failed(Failure {
                contender, failed, ..
            }) => {
                writeln!(out, "  {contender:<44} failed: {failed}")?;
                continue;
            }
            Line::Load(_) => continue,
        };
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
pub(crate) fn short(value: f64) -> String {
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
