//! Content by hash, from the other side: the same both ways.
//!
//! A content is asked for whole. The answer is the content, or the list of its
//! chunks; then the chunks that are not at hand are asked for, several at a
//! time. Wrong content is never passed on: it is asked for again, and a second
//! time is an error that closes the connection. Who keeps chunks by their names
//! has each of them verified ([`Chunks::Verified`]); who only puts a content
//! together verifies that ([`Chunks::AsPartsOfTheWhole`]), and what turns out to
//! be wrong then is verified when it comes again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use super::manifest::{Manifest, ManifestError};
use super::message::WireMessage;
use super::node::ContentHash;

/// How many requests are under way at once. A chunk of ours is under 1 MiB, so
/// this also bounds the memory.
const PARALLEL: usize = 48;

/// What the owner of a [`Fetches`] has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchStep {
    /// Ask the peer for this hash.
    Request(ContentHash),
    /// Start to put large content together, and say with
    /// [`Fetches::planned`] which chunks are not at hand.
    Plan {
        /// The content.
        hash: ContentHash,
        /// Its chunks.
        manifest: Manifest,
    },
    /// Keep a chunk (verified as [`Chunks`] says), then say so with
    /// [`Fetches::chunk_kept`].
    KeepChunk {
        /// The content that it is a part of.
        hash: ContentHash,
        /// The chunk.
        chunk: ContentHash,
        /// Its bytes.
        bytes: Bytes,
        /// Where in the content it belongs.
        offsets: Vec<u64>,
    },
    /// Every chunk is there: verify the whole, and say with
    /// [`Fetches::finished`] whether it is right.
    Finish(ContentHash),
    /// The content is here (verified); the bytes when it came whole.
    Ready(ContentHash, Option<Bytes>),
    /// The peer does not have it.
    NotFound(ContentHash),
}

/// What verifying a content that was put together brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It has the right hash.
    Right,
    /// Every chunk is right and the whole is not.
    Wrong,
    /// These chunks, which were at hand or came unverified, are others.
    Missing(Vec<usize>),
}

/// Who finds out whether a chunk has the hash that it was asked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// [`Fetches`], before it is kept.
    Verified,
    /// Whoever answers [`FetchStep::Finish`], by the hash of the whole.
    AsPartsOfTheWhole,
}

/// The peer's content is wrong.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The bytes do not have the hash they were asked for by, twice.
    #[error("the peer sent wrong content for {hash} twice")]
    WrongContent {
        /// What was asked for.
        hash: ContentHash,
    },
    /// A manifest is not acceptable, twice.
    #[error("the peer sent a bad manifest for {hash} twice: {source}")]
    BadManifest {
        /// What was asked for.
        hash: ContentHash,
        /// What is wrong with it.
        source: ManifestError,
    },
}

#[derive(Debug)]
struct Want {
    size: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Whole,
    Planning(Manifest),
    Chunks { manifest: Manifest, left: usize },
    Finishing(Manifest),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Whole,
    Chunk {
        of: ContentHash,
        offset: u64,
        size: u64,
    },
}

#[derive(Debug, Default)]
struct Request {
    sent: bool,
    targets: Vec<Target>,
}

/// Requests for content that are under way.
#[derive(Debug)]
pub struct Fetches {
    chunks: Chunks,
    wants: HashMap<ContentHash, Want>,
    /// What each request is for; a chunk may be a part of several contents.
    requested: HashMap<ContentHash, Request>,
    waiting: VecDeque<ContentHash>,
    in_flight: usize,
    /// How often what was asked for came wrong; all that is here is verified.
    wrong: BTreeMap<ContentHash, u8>,
    steps: VecDeque<FetchStep>,
}

impl Fetches {
    /// Nothing is under way yet.
    pub fn new(chunks: Chunks) -> Self {
        Self {
            chunks,
            wants: HashMap::new(),
            requested: HashMap::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            wrong: BTreeMap::new(),
            steps: VecDeque::new(),
        }
    }

    /// Wants a content of this size. Wanting it twice is the same as once.
    pub fn want(&mut self, hash: ContentHash, size: u64) {
        if self.wants.contains_key(&hash) {
            return;
        }
        self.wants.insert(
            hash,
            Want {
                size,
                state: State::Whole,
            },
        );
        self.ask(hash, Target::Whole);
    }

    /// Number of contents under way.
    pub fn len(&self) -> usize {
        self.wants.len()
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.wants.is_empty()
    }

    /// Forgets everything, when the connection is lost.
    pub fn clear(&mut self) {
        *self = Self::new(self.chunks);
    }

    fn ask(&mut self, hash: ContentHash, target: Target) {
        let request = self.requested.entry(hash).or_default();
        if request.targets.is_empty() && !request.sent {
            self.waiting.push_back(hash);
        }
        request.targets.push(target);
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<FetchStep> {
        self.poll_unless(false)
    }

    /// The next thing to do, without new requests when there is already more
    /// than can be put in place.
    pub fn poll_unless(&mut self, full: bool) -> Option<FetchStep> {
        if let Some(step) = self.steps.pop_front() {
            return Some(step);
        }
        if self.in_flight < PARALLEL && !full {
            let hash = self.waiting.pop_front()?;
            self.in_flight += 1;
            if let Some(request) = self.requested.get_mut(&hash) {
                request.sent = true;
            }
            return Some(FetchStep::Request(hash));
        }
        None
    }

    /// Takes a peer's answer. An answer that nobody waits for is dropped.
    pub fn response(
        &mut self,
        hash: &str,
        content: Bytes,
        size: u64,
        manifest: Option<&str>,
    ) -> Result<(), FetchError> {
        let Some(hash) = ContentHash::parse(hash) else {
            return Ok(());
        };
        let Some(targets) = self.take_request(&hash) else {
            return Ok(());
        };
        let whole = targets.contains(&Target::Whole);
        if let (Some(json), true) = (manifest, whole) {
            let expected = self.wants.get(&hash).map_or(size, |want| want.size);
            return match Manifest::parse(json, expected) {
                Ok(manifest) => {
                    self.in_flight = self.in_flight.saturating_sub(1);
                    if let Some(want) = self.wants.get_mut(&hash) {
                        want.state = State::Planning(manifest.clone());
                    }
                    self.steps.push_back(FetchStep::Plan { hash, manifest });
                    // Whoever wanted it as a chunk has to ask for it as one.
                    for target in targets
                        .into_iter()
                        .filter(|target| *target != Target::Whole)
                    {
                        self.ask(hash, target);
                    }
                    Ok(())
                }
                Err(source) => self
                    .again(hash, targets)
                    .map_err(|hash| FetchError::BadManifest { hash, source }),
            };
        }
        let right_size = |expected: u64| expected == content.len() as u64 && size == expected;
        let fits = manifest.is_none()
            && targets.iter().all(|target| match target {
                Target::Whole => self
                    .wants
                    .get(&hash)
                    .is_none_or(|want| right_size(want.size)),
                Target::Chunk { size, .. } => right_size(*size),
            });
        let verified_later =
            self.chunks == Chunks::AsPartsOfTheWhole && !whole && !self.wrong.contains_key(&hash);
        if !fits || !verified_later && ContentHash::of(&content) != hash {
            return self
                .again(hash, targets)
                .map_err(|hash| FetchError::WrongContent { hash });
        }
        self.deliver(hash, content, &targets);
        Ok(())
    }

    fn deliver(&mut self, hash: ContentHash, content: Bytes, targets: &[Target]) {
        let mut offsets: BTreeMap<ContentHash, Vec<u64>> = BTreeMap::new();
        for target in targets {
            if let Target::Chunk { of, offset, .. } = target {
                offsets.entry(*of).or_default().push(*offset);
            }
        }
        // A chunk counts as under way until it is kept, so that a slow disk
        // slows the requests down.
        self.in_flight = (self.in_flight + offsets.len()).saturating_sub(1);
        let is_whole = targets.contains(&Target::Whole) && self.wants.remove(&hash).is_some();
        for (of, offsets) in offsets {
            self.steps.push_back(FetchStep::KeepChunk {
                hash: of,
                chunk: hash,
                bytes: content.clone(),
                offsets,
            });
        }
        if is_whole {
            self.steps.push_back(FetchStep::Ready(hash, Some(content)));
        }
    }

    /// The peer does not have it.
    pub fn not_found(&mut self, hash: &str) {
        let Some(hash) = ContentHash::parse(hash) else {
            return;
        };
        let Some(targets) = self.take_request(&hash) else {
            return;
        };
        self.in_flight = self.in_flight.saturating_sub(1);
        for target in targets {
            let content = match target {
                Target::Whole => hash,
                Target::Chunk { of, .. } => of,
            };
            if self.wants.remove(&content).is_some() {
                self.steps.push_back(FetchStep::NotFound(content));
            }
        }
    }

    /// Says which chunks of a planned content are not at hand.
    pub fn planned(&mut self, hash: &ContentHash, missing: &[usize]) {
        let Some(want) = self.wants.get_mut(hash) else {
            return;
        };
        let (State::Planning(manifest) | State::Finishing(manifest)) = &want.state else {
            return;
        };
        let manifest = manifest.clone();
        let chunks: Vec<_> = missing
            .iter()
            .filter_map(|index| manifest.chunks.get(*index))
            .copied()
            .collect();
        if chunks.is_empty() {
            want.state = State::Finishing(manifest);
            self.steps.push_back(FetchStep::Finish(*hash));
            return;
        }
        want.state = State::Chunks {
            manifest,
            left: chunks.len(),
        };
        for chunk in chunks {
            self.ask(
                chunk.hash,
                Target::Chunk {
                    of: *hash,
                    offset: chunk.offset,
                    size: chunk.size,
                },
            );
        }
    }

    /// Says that a chunk was kept at `count` places of a content.
    pub fn chunk_kept(&mut self, hash: &ContentHash, count: usize) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(want) = self.wants.get_mut(hash) else {
            return;
        };
        if let State::Chunks { manifest, left } = &mut want.state {
            *left = left.saturating_sub(count);
            if *left == 0 {
                want.state = State::Finishing(manifest.clone());
                self.steps.push_back(FetchStep::Finish(*hash));
            }
        }
    }

    /// Says whether a content that was put together is right.
    pub fn finished(&mut self, hash: &ContentHash, finish: &Finish) -> Result<(), FetchError> {
        let Some(want) = self.wants.get_mut(hash) else {
            return Ok(());
        };
        if !matches!(want.state, State::Finishing(_)) {
            // Of an earlier connection; this one has begun to put it together anew.
            return Ok(());
        }
        match finish {
            Finish::Right => {
                self.wants.remove(hash);
                self.steps.push_back(FetchStep::Ready(*hash, None));
                Ok(())
            }
            Finish::Missing(chunks) => {
                if let State::Finishing(manifest) = &want.state {
                    let missing = chunks.iter().filter_map(|at| manifest.chunks.get(*at));
                    for chunk in missing {
                        self.wrong.entry(chunk.hash).or_default();
                    }
                }
                self.planned(hash, chunks);
                Ok(())
            }
            // The manifest lied although every chunk was true.
            Finish::Wrong => {
                want.state = State::Whole;
                self.in_flight += 1;
                self.again(*hash, vec![Target::Whole])
                    .map_err(|hash| FetchError::WrongContent { hash })
            }
        }
    }

    /// Says that a content cannot be kept here: nothing more of it is asked for
    /// until it is wanted anew.
    pub fn give_up(&mut self, hash: &ContentHash) {
        self.wants.remove(hash);
        let is_of_it = |at: &ContentHash, target: &Target| match target {
            Target::Whole => at == hash,
            Target::Chunk { of, .. } => of == hash,
        };
        self.requested.retain(|at, request| {
            request.targets.retain(|target| !is_of_it(at, target));
            // What was sent is answered.
            request.sent || !request.targets.is_empty()
        });
        self.waiting.retain(|at| self.requested.contains_key(at));
        self.steps.retain(|step| match step {
            FetchStep::Plan { hash: of, .. } | FetchStep::Finish(of) => of != hash,
            // A chunk counts as under way until it is said to be kept.
            _ => true,
        });
    }

    fn take_request(&mut self, hash: &ContentHash) -> Option<Vec<Target>> {
        if !self.requested.get(hash)?.sent {
            return None;
        }
        self.requested.remove(hash).map(|request| request.targets)
    }

    fn again(&mut self, hash: ContentHash, targets: Vec<Target>) -> Result<(), ContentHash> {
        self.in_flight = self.in_flight.saturating_sub(1);
        let wrong = self.wrong.entry(hash).or_default();
        *wrong += 1;
        if *wrong > 1 {
            return Err(hash);
        }
        for target in targets {
            self.ask(hash, target);
        }
        Ok(())
    }
}

/// The message that asks for a content.
pub fn request(hash: &ContentHash) -> WireMessage {
    WireMessage::ContentFetchRequest {
        content_hash: hash.to_string(),
    }
}

/// What a side has of a content that it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// All of it.
    Whole(Bytes),
    /// Its chunks, by name.
    Chunks(Manifest),
    /// Nothing.
    Nothing,
}

/// The message that answers a request.
pub fn answer(content_hash: String, offer: Offer) -> WireMessage {
    match offer {
        Offer::Whole(content) => WireMessage::ContentFetchResponse {
            content_hash,
            size: content.len() as u64,
            content,
            chunk_manifest: None,
        },
        Offer::Chunks(manifest) => WireMessage::ContentFetchResponse {
            content_hash,
            content: Bytes::new(),
            size: manifest.total_size,
            chunk_manifest: Some(manifest.to_json()),
        },
        Offer::Nothing => WireMessage::ContentNotFound { content_hash },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::manifest::ChunkRef;

    fn manifest(parts: &[&[u8]]) -> (ContentHash, Manifest) {
        let mut offset = 0;
        let chunks = parts
            .iter()
            .map(|part| {
                let chunk = ChunkRef {
                    hash: ContentHash::of(part),
                    offset,
                    size: part.len() as u64,
                };
                offset += chunk.size;
                chunk
            })
            .collect();
        (
            ContentHash::of(&parts.concat()),
            Manifest {
                total_size: offset,
                chunk_size: 4,
                chunks,
            },
        )
    }

    #[test]
    fn wrong_content_is_asked_for_again_and_then_is_an_error() {
        let hash = ContentHash::of(b"right");
        let mut fetches = Fetches::new(Chunks::Verified);
        fetches.want(hash, 5);
        assert_eq!(fetches.poll(), Some(FetchStep::Request(hash)));
        fetches
            .response(&hash.to_string(), Bytes::from_static(b"wrong"), 5, None)
            .unwrap();
        assert_eq!(fetches.poll(), Some(FetchStep::Request(hash)));
        assert!(matches!(
            fetches.response(&hash.to_string(), Bytes::from_static(b"right"), 6, None),
            Err(FetchError::WrongContent { .. })
        ));
    }

    #[test]
    fn only_missing_chunks_are_asked_for_and_each_only_once() {
        let (hash, manifest) = manifest(&[b"aaaa", b"bbb", b"aaaa", b"cc"]);
        let mut fetches = Fetches::new(Chunks::Verified);
        fetches.want(hash, 13);
        fetches.poll();
        fetches
            .response(
                &hash.to_string(),
                Bytes::new(),
                13,
                Some(&manifest.to_json()),
            )
            .unwrap();
        assert_eq!(fetches.poll(), Some(FetchStep::Plan { hash, manifest }));
        fetches.planned(&hash, &[0, 2, 3]);
        let (a, c) = (ContentHash::of(b"aaaa"), ContentHash::of(b"cc"));
        assert_eq!(fetches.poll(), Some(FetchStep::Request(a)));
        assert_eq!(fetches.poll(), Some(FetchStep::Request(c)));
        assert_eq!(fetches.poll(), None);
        fetches
            .response(&c.to_string(), Bytes::from_static(b"cc"), 2, None)
            .unwrap();
        fetches
            .response(&a.to_string(), Bytes::from_static(b"aaaa"), 4, None)
            .unwrap();
        for (chunk, bytes, offsets) in [(c, &b"cc"[..], vec![11]), (a, b"aaaa", vec![0, 7])] {
            let count = offsets.len();
            assert_eq!(
                fetches.poll(),
                Some(FetchStep::KeepChunk {
                    hash,
                    chunk,
                    bytes: Bytes::from_static(bytes),
                    offsets
                })
            );
            fetches.chunk_kept(&hash, count);
        }
        assert_eq!(fetches.poll(), Some(FetchStep::Finish(hash)));
        fetches.finished(&hash, &Finish::Right).unwrap();
        assert_eq!(fetches.poll(), Some(FetchStep::Ready(hash, None)));
        assert!(fetches.is_empty());
    }

    #[test]
    fn a_chunk_that_the_whole_showed_to_be_wrong_is_verified_when_it_comes_again() {
        let (hash, manifest) = manifest(&[b"aaaa", b"bbb"]);
        let (a, b) = (ContentHash::of(b"aaaa"), ContentHash::of(b"bbb"));
        let mut fetches = Fetches::new(Chunks::AsPartsOfTheWhole);
        fetches.want(hash, 7);
        fetches.poll();
        let json = manifest.to_json();
        fetches
            .response(&hash.to_string(), Bytes::new(), 7, Some(&json))
            .unwrap();
        fetches.poll();
        fetches.planned(&hash, &[0, 1]);
        for (chunk, sent) in [(a, &b"aaaa"[..]), (b, b"xxx")] {
            assert_eq!(fetches.poll(), Some(FetchStep::Request(chunk)));
            let size = sent.len() as u64;
            let sent = Bytes::from_static(sent);
            fetches
                .response(&chunk.to_string(), sent, size, None)
                .unwrap();
            assert!(matches!(fetches.poll(), Some(FetchStep::KeepChunk { .. })));
            fetches.chunk_kept(&hash, 1);
        }
        assert_eq!(fetches.poll(), Some(FetchStep::Finish(hash)));
        fetches.finished(&hash, &Finish::Missing(vec![1])).unwrap();
        let mut answer = |sent: &'static [u8]| {
            assert_eq!(fetches.poll(), Some(FetchStep::Request(b)));
            fetches.response(&b.to_string(), Bytes::from_static(sent), 3, None)
        };
        answer(b"yyy").unwrap();
        assert!(matches!(
            answer(b"zzz"),
            Err(FetchError::WrongContent { hash }) if hash == b
        ));
    }

    #[test]
    fn a_manifest_whose_true_chunks_make_another_content_is_refused() {
        let (_, manifest) = manifest(&[b"aaaa", b"bbb"]);
        let hash = ContentHash::of(b"another");
        let mut fetches = Fetches::new(Chunks::Verified);
        fetches.want(hash, 7);
        for attempt in 0..2 {
            assert_eq!(fetches.poll(), Some(FetchStep::Request(hash)));
            fetches
                .response(
                    &hash.to_string(),
                    Bytes::new(),
                    7,
                    Some(&manifest.to_json()),
                )
                .unwrap();
            fetches.poll();
            fetches.planned(&hash, &[]);
            assert_eq!(fetches.poll(), Some(FetchStep::Finish(hash)));
            assert_eq!(
                fetches.finished(&hash, &Finish::Wrong).is_err(),
                attempt == 1
            );
        }
    }

    #[test]
    fn a_content_that_is_its_own_only_chunk_does_not_go_round_in_circles() {
        let (hash, manifest) = manifest(&[b"one chunk"]);
        let mut fetches = Fetches::new(Chunks::Verified);
        fetches.want(hash, 9);
        fetches.poll();
        fetches
            .response(
                &hash.to_string(),
                Bytes::new(),
                9,
                Some(&manifest.to_json()),
            )
            .unwrap();
        fetches.poll();
        fetches.planned(&hash, &[0]);
        assert_eq!(fetches.poll(), Some(FetchStep::Request(hash)));
        fetches
            .response(
                &hash.to_string(),
                Bytes::new(),
                9,
                Some(&manifest.to_json()),
            )
            .unwrap();
        assert_eq!(fetches.poll(), Some(FetchStep::Request(hash)));
        assert!(
            fetches
                .response(
                    &hash.to_string(),
                    Bytes::new(),
                    9,
                    Some(&manifest.to_json())
                )
                .is_err()
        );
    }

    #[test]
    fn what_the_peer_lacks_and_what_nobody_asked_for() {
        let hash = ContentHash::of(b"x");
        let mut fetches = Fetches::new(Chunks::Verified);
        fetches
            .response(&hash.to_string(), Bytes::from_static(b"x"), 1, None)
            .unwrap();
        assert_eq!(fetches.poll(), None);
        fetches.want(hash, 1);
        fetches.want(hash, 1);
        assert_eq!(fetches.poll(), Some(FetchStep::Request(hash)));
        fetches.not_found(&hash.to_string());
        assert_eq!(fetches.poll(), Some(FetchStep::NotFound(hash)));
        assert_eq!(fetches.poll(), None);
        assert!(fetches.is_empty());
    }

    /// What is asked for, now.
    fn requests(fetches: &mut Fetches) -> Vec<ContentHash> {
        std::iter::from_fn(|| fetches.poll())
            .filter_map(|step| match step {
                FetchStep::Request(hash) => Some(hash),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn of_a_content_that_cannot_be_kept_nothing_more_is_asked_for_until_it_is_wanted_anew() {
        let numbers: Vec<Vec<u8>> = (0..100_u8).map(|number| vec![number; 8]).collect();
        let parts: Vec<&[u8]> = numbers.iter().map(Vec::as_slice).collect();
        let (large, of_large) = manifest(&parts);
        // It shares one chunk with the large one, of those that wait.
        let (other, of_other) = manifest(&[b"other", &[99; 8]]);
        let mut fetches = Fetches::new(Chunks::AsPartsOfTheWhole);
        for (hash, manifest) in [(large, &of_large), (other, &of_other)] {
            fetches.want(hash, manifest.total_size);
            assert_eq!(requests(&mut fetches), [hash]);
            let size = manifest.total_size;
            let text = manifest.to_json();
            fetches
                .response(&hash.to_string(), Bytes::new(), size, Some(&text))
                .unwrap();
            assert!(matches!(fetches.poll(), Some(FetchStep::Plan { .. })));
        }
        let all: Vec<usize> = (0..100).collect();
        fetches.planned(&large, &all);
        fetches.planned(&other, &[0, 1]);
        let sent = requests(&mut fetches);
        assert_eq!(sent.len(), PARALLEL);
        // One is kept, another is not.
        for hash in &sent[..2] {
            let bytes = parts.iter().find(|part| ContentHash::of(part) == *hash);
            let bytes = Bytes::copy_from_slice(bytes.unwrap());
            fetches.response(&hash.to_string(), bytes, 8, None).unwrap();
            assert!(matches!(fetches.poll(), Some(FetchStep::KeepChunk { .. })));
        }
        fetches.chunk_kept(&large, 1);
        fetches.chunk_kept(&large, 0);
        fetches.give_up(&large);
        assert_eq!(fetches.len(), 1);
        assert_eq!(
            requests(&mut fetches),
            [ContentHash::of(&[99; 8]), ContentHash::of(b"other")],
            "what the other content needs"
        );
        // Wanted anew: what is still under way is not asked for twice.
        fetches.want(large, of_large.total_size);
        assert!(requests(&mut fetches).is_empty(), "as many as go at once");
        for hash in &sent[2..] {
            let bytes = parts.iter().find(|part| ContentHash::of(part) == *hash);
            let bytes = Bytes::copy_from_slice(bytes.unwrap());
            fetches.response(&hash.to_string(), bytes, 8, None).unwrap();
        }
        assert_eq!(requests(&mut fetches), [large]);
        assert_eq!(fetches.in_flight, 3, "and nothing else is under way");
    }
}
