//! `docs/benchmarks.md` and its plots, made from the results of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::cases::{self, Case};
use crate::goals::{GOALS, Goal};
use crate::harness::{Line, Row, Spread, short};

const INTRODUCTION: &str = "\
# Measurements

Quintet against real peers, each race in one run on one machine, contenders taking turns: a ratio is
taken within a round, so that what the machine does meanwhile hits both. A rate is shown as the median
of the rounds with the smallest and the largest; a ratio above 1 means that ours is faster. Where a
race is about a latency, the rate is how often it fits in a second.

```sh
bench/run all                 # every case, into docs/benchmarks/results.jsonl and this file
bench/run NAME --rounds 3     # one of them, to the terminal
bench/run load                # everything at once for 10 minutes
```

The bench installs the peers itself. Nothing else should run meanwhile: two rounds of one contender
may differ by a third on a busy machine, which the ranges show.
";

/// Where the results of a whole run are kept.
pub(crate) fn results_file() -> PathBuf {
    docs().join("benchmarks/results.jsonl")
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Writes the document and a plot for each case.
pub(crate) fn write() -> anyhow::Result<()> {
    let results = Results::read(&results_file())?;
    fs::write(docs().join("benchmarks.md"), results.document()?)?;
    for case in cases::ALL {
        let path = docs().join(format!("benchmarks/{}.svg", case.name));
        match results.plot(case) {
            Some(svg) => fs::write(path, svg)?,
            None => drop(fs::remove_file(path)),
        }
    }
    Ok(())
}

/// What a whole run brought.
pub(crate) struct Results {
    machine: String,
    lines: Vec<Line>,
}

impl Results {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("{}: run `bench/run all` first", path.display()))?;
        let mut lines = text.lines();
        let machine: BTreeMap<String, String> =
            serde_json::from_str(lines.next().unwrap_or_default())
                .context("the first line says what the machine is")?;
        Ok(Self {
            machine: machine.get("machine").cloned().unwrap_or_default(),
            lines: lines
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()
                .context("a line for each contender")?,
        })
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.lines.iter().filter_map(|line| match line {
            Line::Measured(row) => Some(row),
            Line::Failed(_) | Line::Load(_) => None,
        })
    }

    fn row(&self, case: &str, variant: &str, contender: &str) -> Option<&Row> {
        self.rows()
            .find(|row| row.case == case && row.variant == variant && row.contender == contender)
    }

    /// Our rate divided by a peer's.
    pub(crate) fn ratio(&self, case: &str, variant: &str, peer: &str) -> Option<f64> {
        Some(self.row(case, variant, peer)?.ours_to_this?.median)
    }

    /// A contender's rate.
    pub(crate) fn rate(&self, case: &str, variant: &str, contender: &str) -> Option<f64> {
        Some(self.row(case, variant, contender)?.rate.median)
    }

    fn document(&self) -> anyhow::Result<String> {
        let mut out = INTRODUCTION.to_owned();
        write!(out, "\nThis machine: {}.\n", self.machine)?;
        self.goals(&mut out)?;
        for case in cases::ALL {
            self.case(case, &mut out)?;
        }
        // The newest, where one was added to the results of an earlier run.
        let load = self.lines.iter().rev().find_map(|line| match line {
            Line::Load(load) => Some(load),
            _ => None,
        });
        if let Some(load) = load {
            out.push_str(&load.section()?);
        }
        Ok(out)
    }

    fn goals(&self, out: &mut String) -> anyhow::Result<()> {
        out.push_str("\n## Goals\n\n| goal | measured | |\n|---|---|---|\n");
        let mut missed: Vec<&Goal> = Vec::new();
        for goal in GOALS {
            let Some(measured) = (goal.measure)(self) else {
                writeln!(out, "| {} | not measured | |", goal.text)?;
                continue;
            };
            let met = goal.is_met(measured);
            let word = if met { "met" } else { "**missed**" };
            writeln!(out, "| {} | {} | {word} |", goal.text, goal.shown(measured))?;
            if !met {
                missed.push(goal);
            }
        }
        for goal in missed {
            writeln!(out, "\n**{}**: {}", goal.text, goal.why_missed)?;
        }
        Ok(())
    }

    fn case(&self, case: &Case, out: &mut String) -> anyhow::Result<()> {
        let mut variant = None;
        for line in &self.lines {
            let (of, race) = match line {
                Line::Measured(row) => (&row.case, &row.variant),
                Line::Failed(failure) => (&failure.case, &failure.variant),
                Line::Load(_) => continue,
            };
            if of != case.name {
                continue;
            }
            if variant.is_none() {
                writeln!(out, "\n## {}: {}", case.name, case.about)?;
                if self.plot(case).is_some() {
                    writeln!(out, "\n![{} as a plot](benchmarks/{0}.svg)", case.name)?;
                }
            }
            if variant != Some(race) {
                variant = Some(race);
                let unit = match line {
                    Line::Measured(row) => row.unit.as_str(),
                    Line::Failed(_) | Line::Load(_) => "",
                };
                writeln!(
                    out,
                    "\n| {race} | {unit} | range | ours to this | range |\n|---|--:|--:|--:|--:|"
                )?;
            }
            match line {
                Line::Measured(row) => {
                    let ratio = row.ours_to_this;
                    writeln!(
                        out,
                        "| {} | {} | {} | {} | {} |",
                        cell(&row.contender),
                        short(row.rate.median),
                        range(row.rate, short),
                        ratio.map_or_else(String::new, |ratio| two(ratio.median)),
                        ratio.map_or_else(String::new, |ratio| range(ratio, two)),
                    )?;
                }
                Line::Failed(failure) => {
                    let first = failure.failed.lines().next().unwrap_or_default();
                    writeln!(
                        out,
                        "| {} | failed: {first} | | | |",
                        cell(&failure.contender)
                    )?;
                }
                Line::Load(_) => {}
            }
        }
        Ok(())
    }

    /// Bars of how many times as fast as each peer ours is, on a logarithmic scale.
    fn plot(&self, case: &Case) -> Option<String> {
        const ROW: usize = 22;
        const LEFT: f64 = 430.0;
        const DECADE: f64 = 150.0;
        let bars: Vec<(&Row, Spread)> = self
            .rows()
            .filter(|row| row.case == case.name)
            .filter_map(|row| Some((row, row.ours_to_this?)))
            .collect();
        if bars.is_empty() {
            return None;
        }
        // From a tenth to a thousand times.
        let at = |ratio: f64| LEFT + DECADE * (1.0 + ratio.clamp(0.1, 1000.0).log10());
        let (height, width) = (40 + bars.len() * ROW, at(1000.0) + 60.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for ratio in [0.1, 1.0, 10.0, 100.0, 1000.0] {
            let x = at(ratio);
            let stroke = if ratio == 1.0 { "#333" } else { "#ddd" };
            let bottom = height - 20;
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"20\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{stroke}\"/>\
                 <text x=\"{x}\" y=\"14\" text-anchor=\"middle\">{ratio}×</text>"
            );
        }
        for (index, (row, ratio)) in bars.iter().enumerate() {
            let top = 24 + index * ROW;
            let (one, end) = (at(1.0), at(ratio.median));
            let (x, bar) = (one.min(end), (end - one).abs());
            let fill = if ratio.median >= 1.0 {
                "#2a7f62"
            } else {
                "#b5533c"
            };
            let (low, high, middle, text) = (at(ratio.min), at(ratio.max), top + 7, top + 11);
            let label = escaped(&format!("{}: {}", row.variant, row.contender));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{label}</text>\
                 <rect x=\"{x:.1}\" y=\"{top}\" width=\"{bar:.1}\" height=\"14\" fill=\"{fill}\"/>\
                 <line x1=\"{low:.1}\" y1=\"{middle}\" x2=\"{high:.1}\" y2=\"{middle}\" stroke=\"#333\"/>\
                 <text x=\"{:.1}\" y=\"{text}\">{}</text>",
                LEFT - 8.0,
                high.max(end).max(one) + 6.0,
                two(ratio.median),
            );
        }
        svg.push_str("</svg>\n");
        Some(svg)
    }
}

fn range(spread: Spread, show: impl Fn(f64) -> String) -> String {
    format!("{} to {}", show(spread.min), show(spread.max))
}

fn two(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// A name inside a table.
fn cell(name: &str) -> String {
    name.replace('|', "\\|")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// What a reader has to know about where the numbers come from.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split(':').nth(1));
        value.unwrap_or("unknown").trim().to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{cores} cores of {}, {} of memory, Linux {}",
        after(&read("/proc/cpuinfo"), "model name"),
        after(&read("/proc/meminfo"), "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        Results {
            machine: "a machine".to_owned(),
            lines: [
                r#"{"case":"control","variant":"ping, 1 connection","contender":"quintet-control","unit":"round trips/s","rounds":1,"rate":{"min":1,"median":2,"max":3}}"#,
                r#"{"case":"control","variant":"ping, 1 connection","contender":"bare prost frame echo","unit":"round trips/s","rounds":1,"rate":{"min":1,"median":4,"max":5},"ours_to_this":{"min":0.4,"median":0.5,"max":0.6}}"#,
                r#"{"case":"control","variant":"ping, 1 connection","contender":"tonic | tonic","failed":"no <answer>\nat all"}"#,
            ]
            .map(|line| serde_json::from_str(line).expect("a line"))
            .into(),
        }
    }

    #[test]
    fn a_missed_goal_a_goal_without_a_figure_and_a_failed_peer_are_said() {
        let text = results().document().expect("a document");
        assert!(
            text.contains("at least 3 times tonic | not measured | |"),
            "{text}"
        );
        assert!(text.contains("| 0.50 times | **missed** |"), "{text}");
        assert!(
            text.contains("| tonic \\| tonic | failed: no <answer> | | | |"),
            "{text}"
        );
        assert!(
            text.contains("| bare prost frame echo | 4.00 | 1.00 to 5.00 | 0.50 | 0.40 to 0.60 |")
        );
    }

    #[test]
    fn the_newest_load_is_a_section() {
        let mut results = results();
        assert!(!results.document().expect("a document").contains("## Load"));
        for count in [1, 2] {
            let line = serde_json::json!({
                "case": "load", "minutes": 10.0,
                "workers": 4, "sessions": 3, "browsers": 2, "replicas": 1,
                "latencies": [{
                    "plane": "control", "what": "ping", "count": count,
                    "p50": 1.0, "p99": 2.0, "max": 3.0,
                }],
                "memory": {
                    "early": 100.0, "late": 101.0, "daemon_most": 110.0, "all_most": 900.0,
                    "samples": 60,
                },
                "errors": [],
            });
            let line = serde_json::from_value(line).expect("a line");
            assert!(matches!(line, Line::Load(_)));
            results.lines.push(line);
        }
        let text = results.document().expect("a document");
        assert!(
            text.contains("| control | ping | 2 | 1.00 ms | 2.00 ms | 3.00 ms |"),
            "{text}"
        );
        assert!(!text.contains("| control | ping | 1 |"), "{text}");
        assert!(text.contains("101.0 MiB in the last: +1.0 %"), "{text}");
        assert!(text.contains("| errors | none |"), "{text}");
    }

    #[test]
    fn only_cases_with_peers_have_a_plot() {
        let results = results();
        let with: Vec<&str> = cases::ALL
            .iter()
            .filter(|case| results.plot(case).is_some())
            .map(|case| case.name)
            .collect();
        assert_eq!(with, ["control"]);
    }

    #[test]
    fn the_document_is_what_the_results_say() {
        let results = Results::read(&results_file()).expect("kept with the document");
        let written = fs::read_to_string(docs().join("benchmarks.md")).expect("a document");
        assert!(
            written == results.document().expect("a document"),
            "docs/benchmarks.md is not what `bench/run document` makes"
        );
    }
}
