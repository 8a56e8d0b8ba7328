//! Which places are tried, several at a time, and what became of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::proxy::Plan;

/// Trials wait for processes and disks more than they compute.
const AT_ONCE: usize = 4;

/// Which turns of the walk through a list are taken, where the first `short` are in a plain run.
fn turns(short: usize) -> Range<usize> {
    let number = |text: &str| text.parse().unwrap();
    match std::env::var("QUINTET_FAULTS").as_deref() {
        Ok("long") => 0..usize::MAX,
        Ok(asked) => match asked.split_once("..") {
            Some((from, to)) => number(from)..number(to),
            None => 0..number(asked),
        },
        Err(_) => 0..short,
    }
}

/// As many of them as are to be tried, or those whose name is asked for.
///
/// Lists name each fault of one place before the next place, so that every so manieth entry would
/// be the same fault again and again: a stride that has no divisor in common with the list's length
/// goes through all of them, and is spread over the list all the same.
pub(crate) fn chosen<T: Display>(places: Vec<T>, short: usize) -> Vec<T> {
    if let Ok(part) = std::env::var("QUINTET_FAULTS_ONLY") {
        let asked = places.into_iter();
        return asked
            .filter(|place| place.to_string().contains(&part))
            .collect();
    }
    let taken = spread(places.len(), turns(short));
    (0..)
        .zip(places)
        .filter(|(at, _)| taken.contains(at))
        .map(|(_, place)| place)
        .collect()
}

/// Which of `count` entries these turns of the walk come to.
fn spread(count: usize, turns: Range<usize>) -> BTreeSet<usize> {
    // The golden section keeps the entries of any beginning of the walk apart.
    let near = count * 618 / 1000;
    let stride = (near.max(1)..).find(|stride| shared_divisor(*stride, count) == 1);
    let stride = stride.unwrap_or(1);
    (turns.start..turns.end.min(count))
        .map(|turn| turn * stride % count)
        .collect()
}

fn shared_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { shared_divisor(b, a % b) }
}

#[test]
fn a_few_places_of_a_list_hold_every_fault() {
    for count in (5..400).step_by(5) {
        let faults: BTreeSet<usize> = spread(count, 0..6).iter().map(|at| at % 5).collect();
        assert_eq!(faults.len(), 5, "of {count}");
        assert_eq!(spread(count, 0..usize::MAX).len(), count);
        let [beginning, rest] = [0..6, 6..usize::MAX].map(|turns| spread(count, turns));
        assert!(beginning.is_disjoint(&rest));
    }
}

/// Tries every place. `trial` says in a word what was seen, and panics where a promise is broken.
pub(crate) async fn tries<T, F>(row: &str, places: Vec<T>, trial: impl Fn(T) -> F)
where
    T: Display + Clone,
    F: Future<Output = &'static str> + Send + 'static,
{
    let began = Instant::now();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    let mut names = BTreeMap::new();
    let tried = places.len();
    assert!(tried > 0, "{row}: there is no such place to try");
    for place in places {
        let (name, work, turns) = (place.to_string(), trial(place), turns.clone());
        let handle = running.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            work.await
        });
        names.insert(handle.id(), name);
    }
    let mut seen = BTreeMap::<&str, usize>::new();
    let mut broken = Vec::new();
    while let Some(ended) = running.join_next_with_id().await {
        match ended {
            Ok((_, word)) => *seen.entry(word).or_default() += 1,
            Err(error) => {
                let name = &names[&error.id()];
                eprintln!("faults: BROKEN {row}: {name}");
                broken.push(name.clone());
            }
        }
    }
    let words: Vec<String> = seen.iter().map(|(word, n)| format!("{n} {word}")).collect();
    eprintln!(
        "faults: {row}: {tried} tried in {:.0?}: {}",
        began.elapsed(),
        words.join(", ")
    );
    assert!(
        broken.is_empty(),
        "{row}: a promise was broken at {broken:#?}; repeat with QUINTET_FAULTS_ONLY"
    );
}

/// Tells a story through a proxy that does nothing wrong, and then with each of the plans that it gave.
pub(crate) async fn at_every_frame<F>(row: &str, story: impl Fn(Option<Plan>) -> F)
where
    F: Future<Output = (&'static str, Vec<Plan>)> + Send + 'static,
{
    let (_, plans) = story(None).await;
    tries(row, chosen(plans, 6), |plan| {
        let told = story(Some(plan));
        async { told.await.0 }
    })
    .await;
}
