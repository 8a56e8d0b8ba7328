//! Runs every target on its committed corpus, and for a few seconds on mutations of it.
//!
//! `QUINTET_FUZZ_SECONDS` (for each target), `QUINTET_FUZZ_SEED` and `QUINTET_FUZZ_TARGET` change
//! the run. An input that panics, takes too long or too much memory is kept in `artifacts/`; move it
//! to `corpus/` with the fix.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use quintet_fuzz::mutate::Mutator;
use quintet_fuzz::{TARGETS, Target};

/// An input takes well under a millisecond; this is a hang, also on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Inputs have at most 4 KiB; what they make a decoder take is bounded by a small multiple and by
/// the fixed buffers of a connection.
const MEMORY_LIMIT: usize = 64 << 20;

/// Counts what is allocated, so that an input that takes too much is found by itself.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is the system allocator's own, with the arguments as they came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(used, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn every_target_holds_on_its_corpus_and_mutations_of_it() {
    let seconds = setting("QUINTET_FUZZ_SECONDS", 2);
    let seed = setting("QUINTET_FUZZ_SEED", 7505);
    let only = std::env::var("QUINTET_FUZZ_TARGET").ok();
    let wanted = |target: &&Target| only.as_ref().is_none_or(|name| name == target.name);
    for target in TARGETS.iter().filter(wanted) {
        let _watched = Watch::over(target);
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
    let before = USED.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    *lock(&CURRENT) = Some((Instant::now(), input.to_vec()));
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    *lock(&CURRENT) = None;
    let taken = MOST.load(Ordering::Relaxed).saturating_sub(before);
    if outcome.is_err() || taken > MEMORY_LIMIT {
        let kept = keep(target.name, input);
        panic!(
            "target {} broke ({origin}, {taken} bytes taken); the input is in {}: {input:02x?}",
            target.name,
            kept.display()
        );
    }
}

fn keep(target: &str, input: &[u8]) -> PathBuf {
    let folder = folder("artifacts").join(target);
    fs::create_dir_all(&folder).unwrap();
    let kept = folder.join("broken");
    fs::write(&kept, input).unwrap();
    kept
}

/// The input that runs, and since when.
static CURRENT: Mutex<Option<(Instant, Vec<u8>)>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Ends the process when an input does not end.
struct Watch {
    // Dropped, it ends the thread.
    _alive: mpsc::Sender<()>,
}

impl Watch {
    fn over(target: &'static Target) -> Self {
        let (alive, gone) = mpsc::channel::<()>();
        thread::spawn(move || {
            while gone.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout)
            {
                if let Some((since, input)) = &*lock(&CURRENT)
                    && since.elapsed() > TIME_LIMIT
                {
                    let kept = keep(target.name, input);
                    eprintln!("target {} hangs on {}", target.name, kept.display());
                    std::process::abort();
                }
            }
        });
        Self { _alive: alive }
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
