//! Runs races in rounds and reports them with the machine's noise.
//!
//! In a round every contender runs once, right after the other, and each round starts with another
//! one: what the machine does meanwhile hits all of them alike. So the ratio of two contenders is
//! taken within a round, and its spread over the rounds says how far it can be believed.

use std::io::Write;

mod report;
mod stats;

pub(crate) use report::{Failure, Line, Row, short};
pub(crate) use stats::Spread;
use stats::ratios;

/// One measurement: contenders that do the same work. The first is ours.
pub(crate) struct Race {
    /// What is varied within the case, as `1 KiB`.
    pub(crate) variant: String,
    /// What the numbers count, as `frames/s`; more is better.
    pub(crate) unit: &'static str,
    /// Payload bytes of one of those, when throughput is of interest.
    pub(crate) bytes_each: Option<u64>,
    pub(crate) contenders: Vec<Contender>,
}

/// One way of doing the work.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// Does one round's work; returns how many units a second it did.
    pub(crate) round: Box<dyn FnMut() -> anyhow::Result<f64>>,
}

impl Contender {
    pub(crate) fn new(
        name: &'static str,
        round: impl FnMut() -> anyhow::Result<f64> + 'static,
    ) -> Self {
        Self {
            name,
            round: Box::new(round),
        }
    }
}

/// Runs the races, a table to `talk` and one JSON object a line to `data` as each one ends.
pub(crate) fn run(
    case: &str,
    races: Vec<Race>,
    rounds: usize,
    talk: &mut dyn Write,
    data: &mut dyn Write,
) -> anyhow::Result<()> {
    anyhow::ensure!(rounds > 0, "at least one round is needed");
    for mut race in races {
        let samples = samples(&mut race.contenders, rounds)?;
        let lines = lines(case, &race, &samples);
        report::table(&lines, talk)?;
        report::json_lines(&lines, data)?;
    }
    Ok(())
}

/// The rates of a contender's rounds, or why a peer has none.
type Rates = Result<Vec<f64>, String>;

/// The rate of every contender in every round, after one round that only warms up.
///
/// A peer that fails is out of the race, and the others go on; ours must not.
fn samples(contenders: &mut [Contender], rounds: usize) -> anyhow::Result<Vec<Rates>> {
    let mut samples: Vec<Rates> = vec![Ok(Vec::with_capacity(rounds)); contenders.len()];
    // The first round is not counted.
    for round in 0..=rounds {
        for turn in 0..contenders.len() {
            let who = (round.saturating_sub(1) + turn) % contenders.len();
            let Ok(rates) = &mut samples[who] else {
                continue;
            };
            match (contenders[who].round)() {
                Ok(rate) if round > 0 => rates.push(rate),
                Ok(_) => {}
                Err(error) if who == 0 => return Err(error),
                Err(error) => samples[who] = Err(format!("{error:#}")),
            }
        }
    }
    Ok(samples)
}

fn lines(case: &str, race: &Race, samples: &[Rates]) -> Vec<Line> {
    let ours = samples.first().and_then(|rates| rates.as_ref().ok());
    let contenders = race.contenders.iter().zip(samples).enumerate();
    let line = |(index, (contender, rates)): (usize, (&Contender, &Rates))| match rates {
        Err(failed) => Line::Failed(Failure {
            case: case.to_owned(),
            variant: race.variant.clone(),
            contender: contender.name.to_owned(),
            failed: failed.clone(),
        }),
        Ok(mine) => Line::Measured(Row {
            case: case.to_owned(),
            variant: race.variant.clone(),
            contender: contender.name.to_owned(),
            unit: race.unit.to_owned(),
            rounds: mine.len(),
            rate: Spread::of(mine),
            bytes_per_second: race
                .bytes_each
                .map(|bytes| Spread::of(mine).scaled(bytes as f64)),
            ours_to_this: ours
                .filter(|_| index > 0)
                .map(|ours| Spread::of(&ratios(ours, mine))),
        }),
    };
    contenders.map(line).collect()
}

/// Times `work`, which does `units` of it.
///
/// # Errors
/// When the work fails.
pub(crate) fn rate(units: u64, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = std::time::Instant::now();
    work()?;
    Ok(units as f64 / started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// A race in which ours is twice as fast as the peer in every round, on a machine that slows
    /// down from round to round.
    fn race(calls: &Rc<RefCell<String>>) -> Race {
        let contender = |name: &'static str, speed: f64| {
            let calls = Rc::clone(calls);
            let mut machine = 110.0;
            Contender::new(name, move || {
                calls.borrow_mut().push_str(&name[..1]);
                machine -= 10.0;
                Ok(machine * speed)
            })
        };
        Race {
            variant: "small".to_owned(),
            unit: "things/s",
            bytes_each: Some(10),
            contenders: vec![contender("ours", 2.0), contender("peer", 1.0)],
        }
    }

    #[test]
    fn contenders_take_turns_and_change_who_begins() {
        let calls = Rc::default();
        samples(&mut race(&calls).contenders, 3).unwrap();
        // A warm-up, then three rounds.
        assert_eq!(calls.borrow().as_str(), "op op po op".replace(' ', ""));
    }

    #[test]
    fn the_ratio_is_taken_within_a_round() {
        let mut race = race(&Rc::default());
        let samples = samples(&mut race.contenders, 3).unwrap();
        let lines = lines("case", &race, &samples);
        let [Line::Measured(ours), Line::Measured(peer)] = lines.as_slice() else {
            panic!("{lines:?}");
        };
        assert_eq!(
            ours.rate,
            Spread {
                min: 140.0,
                median: 160.0,
                max: 180.0
            }
        );
        assert_eq!(ours.ours_to_this, None);
        let twice = Spread {
            min: 2.0,
            median: 2.0,
            max: 2.0,
        };
        assert_eq!(peer.ours_to_this, Some(twice));
    }

    #[test]
    fn there_is_a_table_and_a_json_line_for_each_contender() {
        let (mut talk, mut data) = (Vec::new(), Vec::new());
        run("case", vec![race(&Rc::default())], 3, &mut talk, &mut data).unwrap();
        let talk = String::from_utf8(talk).unwrap();
        assert_eq!(
            talk.lines().filter(|line| line.contains("peer")).count(),
            1,
            "{talk}"
        );
        let lines: Vec<serde_json::Value> = String::from_utf8(data)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            lines[1],
            serde_json::json!({
                "case": "case", "variant": "small", "contender": "peer", "unit": "things/s",
                "rounds": 3,
                "rate": {"min": 70.0, "median": 80.0, "max": 90.0},
                "bytes_per_second": {"min": 700.0, "median": 800.0, "max": 900.0},
                "ours_to_this": {"min": 2.0, "median": 2.0, "max": 2.0},
            })
        );
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn a_peer_that_fails_is_out_and_the_others_go_on() {
        let mut race = race(&Rc::default());
        race.contenders
            .insert(1, Contender::new("broken", || anyhow::bail!("no answer")));
        let (mut talk, mut data) = (Vec::new(), Vec::new());
        run("case", vec![race], 3, &mut talk, &mut data).unwrap();
        let data = String::from_utf8(data).unwrap();
        let lines: Vec<Line> = data
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let [
            Line::Measured(ours),
            Line::Failed(broken),
            Line::Measured(peer),
        ] = lines.as_slice()
        else {
            panic!("{data}");
        };
        assert_eq!(broken.failed, "no answer");
        assert_eq!((ours.rounds, peer.rounds), (3, 3));
        assert!(String::from_utf8(talk).unwrap().contains("no answer"));
    }

    #[test]
    fn ours_must_not_fail() {
        let mut race = race(&Rc::default());
        race.contenders
            .insert(0, Contender::new("ours", || anyhow::bail!("no answer")));
        let error = run("case", vec![race], 1, &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "no answer");
    }
}
