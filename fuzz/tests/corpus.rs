//! Runs every target on its committed corpus, and for a few seconds on mutations of it.
//!
//! `QUINTET_FUZZ_SECONDS` (for each target) and `QUINTET_FUZZ_SEED` change the run. An input that
//! breaks a target is kept in `artifacts/`; move it to `corpus/` with the fix.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quintet_fuzz::mutate::Mutator;
use quintet_fuzz::{TARGETS, Target};

#[test]
fn every_target_holds_on_its_corpus_and_mutations_of_it() {
    let seconds = setting("QUINTET_FUZZ_SECONDS", 2);
    let seed = setting("QUINTET_FUZZ_SEED", 7505);
    for target in TARGETS {
        let corpus = corpus(target);
        for input in &corpus {
            run(target, input, "replay of the corpus");
        }
        let mut mutator = Mutator::new(seed);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut inputs = 0_u64;
        while Instant::now() < end {
            let input = mutator.next_input(&corpus);
            run(target, &input, &format!("seed {seed}, input {inputs}"));
            inputs += 1;
        }
        println!(
            "{}: {} corpus files, {inputs} mutations in {seconds} s, seed {seed}",
            target.name,
            corpus.len()
        );
    }
}

#[test]
fn every_target_has_a_libfuzzer_program() {
    let mut programs: Vec<String> = files(&folder("fuzz_targets"))
        .iter()
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    programs.sort();
    let mut names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    names.sort_unstable();
    assert_eq!(programs, names);
}

#[test]
fn a_seed_gives_the_same_inputs() {
    let corpus = [b"abc".to_vec(), vec![0; 40]];
    let inputs = |seed| {
        let mut mutator = Mutator::new(seed);
        (0..100)
            .map(|_| mutator.next_input(&corpus))
            .collect::<Vec<_>>()
    };
    assert_eq!(inputs(1), inputs(1));
    assert_ne!(inputs(1), inputs(2));
}

fn run(target: &Target, input: &[u8], origin: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
        let kept = folder("artifacts").join(target.name);
        fs::create_dir_all(&kept).unwrap();
        let kept = kept.join("broken");
        fs::write(&kept, input).unwrap();
        panic!(
            "target {} broke ({origin}); the input is in {}: {input:02x?}",
            target.name,
            kept.display()
        );
    }
}

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let inputs: Vec<Vec<u8>> = files(&folder("corpus").join(target.name))
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect();
    assert!(!inputs.is_empty(), "target {} has no corpus", target.name);
    inputs
}

/// In order of name: the mutations of a seed depend on it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}
