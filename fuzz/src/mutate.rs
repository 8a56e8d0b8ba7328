//! A small mutator for machines without libFuzzer: the same seed gives the same inputs.

/// Inputs stay this small: decoders break on structure, not on bulk.
const MAX_LEN: usize = 4096;

/// Values that sit at the edges of length fields.
const EDGES: [u32; 8] = [0, 1, 0x7f, 0x80, 0xffff, 1 << 24, i32::MAX as u32, u32::MAX];

/// Derives inputs from a corpus.
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Starts the sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next input: one of `corpus`, changed in a few places.
    pub fn next_input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus
            .get(self.below(corpus.len()))
            .cloned()
            .unwrap_or_default();
        for _ in 0..=self.below(6) {
            self.change(&mut input, corpus);
        }
        input.truncate(MAX_LEN);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(7) {
            0 => input.insert(at, self.next() as u8),
            1 => drop(input.drain(at.min(end)..end)),
            2 => input.truncate(at),
            3 => {
                let copy = input[at.min(end)..end].to_vec();
                input.extend(copy);
            }
            4 => {
                let edge = EDGES[self.below(EDGES.len())];
                let bytes = if self.next() & 1 == 0 {
                    edge.to_le_bytes()
                } else {
                    edge.to_be_bytes()
                };
                let end = (at + bytes.len()).min(input.len());
                input[at..end].copy_from_slice(&bytes[..end - at]);
            }
            5 => {
                let other = corpus
                    .get(self.below(corpus.len()))
                    .map_or(&[][..], Vec::as_slice);
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << self.below(8);
                }
            }
        }
    }

    /// A number below `limit`; 0 when there is none.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// SplitMix64: tiny, and good enough to pick positions.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
