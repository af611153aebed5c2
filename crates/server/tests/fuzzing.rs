//! A short run of the fuzz targets for requests and grammars: their seeds are taken, and what becomes of the seeds when
//! they are damaged is taken or refused, the same every time. A panic fails.

use std::path::Path;

use mambo_server::fuzzing;

const ROUNDS: usize = 400;

/// A 64-bit linear congruence.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }

    /// Damages bytes in one to three places.
    fn damage(&mut self, bytes: &mut Vec<u8>, others: &[u8]) {
        const WORDS: [&str; 16] = [
            "\"", "{", "}", "[", "]", ",", ":", "\\", "null", "-1", "1e999", "\\ud800", "$ref", "|", "(a*)*",
            "{9,99}",
        ];
        for _ in 0..=self.below(3) {
            let (at, width) = (self.below(bytes.len() + 1), self.below(24));
            let end = bytes.len().min(at + width);
            match self.below(5) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 => drop(bytes.drain(at..end)),
                2 => {
                    let word = WORDS[self.below(WORDS.len())].bytes();
                    bytes.splice(at..at, word);
                }
                3 => {
                    let copy = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() + 1);
                    bytes.splice(to..to, copy);
                }
                _ => {
                    let from = self.below(others.len());
                    let piece = others[from..others.len().min(from + width)].to_vec();
                    bytes.splice(at..end, piece);
                }
            }
        }
    }
}

/// Runs a target on its seeds and on damaged ones.
fn run(name: &str, target: fn(&[u8]) -> bool) {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds")).join(name);
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, seed) in paths.iter().zip(&seeds) {
        assert!(target(seed), "{} is refused", path.display());
    }
    let all = seeds.concat();
    let mut random = Random(1);
    let mut taken = 0;
    for round in 0..ROUNDS {
        let mut bytes = seeds[round % seeds.len()].clone();
        random.damage(&mut bytes, &all);
        taken += usize::from(target(&bytes));
    }
    assert!((ROUNDS / 50..ROUNDS).contains(&taken), "{taken} of {ROUNDS} were taken");
}

#[test]
fn openai_requests() {
    run("openai_requests", fuzzing::openai);
}

#[test]
fn anthropic_requests() {
    run("anthropic_requests", fuzzing::anthropic);
}

#[test]
fn ollama_requests() {
    run("ollama_requests", fuzzing::ollama);
}

#[test]
fn own_requests() {
    run("own_requests", fuzzing::own);
}

#[test]
fn grammars() {
    run("grammar", fuzzing::grammar);
}
