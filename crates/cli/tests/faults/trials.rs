//! Which places are tried, several at a time, and what became of them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Trials wait for processes and disks more than they compute.
const AT_ONCE: usize = 4;

/// How many places of a list are tried, where `short` are in a plain run.
fn most(short: usize) -> usize {
    match std::env::var("QUINTET_FAULTS").as_deref() {
        Ok("long") => usize::MAX,
        Ok(number) => number.parse().unwrap(),
        Err(_) => short,
    }
}

/// As many of them as are to be tried, evenly spread; or those whose name is asked for.
pub(crate) fn chosen<T: Display>(places: Vec<T>, short: usize) -> Vec<T> {
    if let Ok(part) = std::env::var("QUINTET_FAULTS_ONLY") {
        let asked = places.into_iter();
        return asked
            .filter(|place| place.to_string().contains(&part))
            .collect();
    }
    let (count, most) = (places.len(), most(short));
    let taken =
        |(at, _): &(usize, T)| count <= most || at * most / count != (at + 1) * most / count;
    places
        .into_iter()
        .enumerate()
        .filter(taken)
        .map(|(_, place)| place)
        .collect()
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
