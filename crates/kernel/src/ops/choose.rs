//! `choose`: the token that follows a row, from its logits. The step specifies how, row by row ([`ChooseRow`]).
//!
//! Logits are adjusted ([`Adjustment`]); a token whose logit is NaN or minus infinity, or that the mask forbids, is never
//! chosen. At temperature 0 the largest is taken. Otherwise, with `s = (l - max) / temperature`, tokens are kept in this
//! order: the `top_k` largest; those with `s >= -BAND`; of these the fewest, largest first, whose `exp(s)` sum to `top_p` of
//! all; those with `exp(s) >= min_p`. The kept token with the largest `s + g` is taken, where `g` is a Gumbel number
//! made from seed, position and token ([`noise`]): that draws from the softmax of the kept tokens, and neither the
//! batch nor the order of the search matters. Ties go to the lower id everywhere.
//!
//! [`BAND`] changes no probability: no noise is large enough to lift a token from below it over the best one.
//!
//! Tolerance: a choice is right if the reference makes it with `top_p` and `min_p` moved by 1e-5, or if it comes within
//! 1e-4 of that one's `s + g`: sums and logarithms of f32.

use std::cmp::Ordering;

use crate::case::{Case, CaseChoose, RAGGED, Rng};
use crate::op::Op;
use crate::rounding::{SPREAD, mix};
use crate::step::{Adjustment, ChooseRow, NO_TOKEN, mask_words};
use crate::value::{Rows, ValueType};

/// How far below the best a token may be and still win: more than the largest noise minus the smallest.
pub const BAND: f32 = 21.0;

/// The part of the noise that a whole row shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseKey([u32; 2]);

impl NoiseKey {
    /// The key of one position under a seed.
    pub fn new(seed: u64, position: u32) -> Self {
        let fold = |start: u32, words: [u32; 3]| {
            words.into_iter().fold(start, |key, word| mix(key ^ word).wrapping_add(SPREAD))
        };
        let words = [seed as u32, (seed >> 32) as u32, position];
        NoiseKey([fold(SPREAD, words), fold(!SPREAD, words)])
    }

    /// The random bits of a token.
    pub fn bits(self, token: u32) -> u32 {
        mix(mix(token.wrapping_mul(SPREAD).wrapping_add(self.0[0])) ^ self.0[1])
    }
}

/// The Gumbel number of random bits: `-ln(-ln u)`, with u from the upper 24 bits and never 0 or 1.
///
/// Without f64 it is `-ln e` with `e = v + v²/2 + v³/3` where `v = 1 - u`, made of the inverted bits, is below 2^-8, and
/// `e = -ln u` elsewhere: u near 1, where winners are drawn, has too few digits in f32.
pub fn noise(bits: u32) -> f32 {
    let u = (f64::from(bits >> 8) + 0.5) / f64::from(1 << 24);
    -(-u.ln()).ln() as f32
}

/// A logit after its adjustment.
pub fn adjusted(logit: f32, change: &Adjustment) -> f32 {
    let biased = logit + change.bias;
    let scaled = if biased > 0.0 { biased / change.factor } else { biased * change.factor };
    scaled - change.penalty
}

/// Larger logits first, then lower ids; zeros of both signs are equal. No logit is NaN here.
pub fn most_likely_first(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal).then(a.0.cmp(&b.0))
}

/// The tokens that may be chosen with their adjusted logits, most likely first.
fn candidates(logits: &[f32], adjustments: &[Adjustment], mask: Option<&[u32]>) -> Vec<(u32, f32)> {
    let allowed = |token: u32| mask.is_none_or(|mask| mask[token as usize / 32] >> (token % 32) & 1 == 1);
    let change = |token: u32| {
        let index = adjustments.binary_search_by_key(&token, |change| change.token).ok()?;
        Some(&adjustments[index])
    };
    let value =
        |(token, &logit): (u32, &f32)| (token, change(token).map_or(logit, |change| adjusted(logit, change)));
    let mut all: Vec<(u32, f32)> = (0..).zip(logits).map(value).collect();
    all.retain(|(token, logit)| allowed(*token) && *logit > f32::NEG_INFINITY);
    all.sort_by(most_likely_first);
    all
}

/// Kept tokens with their scores `s + g`; one alone where nothing is drawn.
fn kept(candidates: &[(u32, f32)], row: &ChooseRow) -> Vec<(u32, f32)> {
    let Some(&(best, max)) = candidates.first() else { return Vec::new() };
    if row.temperature == 0.0 || max == f32::INFINITY {
        return vec![(best, 0.0)];
    }
    let scaled = candidates.iter().map(|&(token, logit)| (token, (logit - max) / row.temperature));
    let count = if row.top_k == 0 { candidates.len() } else { row.top_k as usize };
    let band: Vec<(u32, f32)> = scaled.take(count).take_while(|(_, s)| *s >= -BAND).collect();
    let total: f64 = band.iter().map(|(_, s)| f64::from(*s).exp()).sum();
    let mut sum = 0.0;
    let likely = band.iter().take_while(|(_, s)| {
        let is_wanted = row.top_p >= 1.0 || sum < f64::from(row.top_p) * total;
        sum += f64::from(*s).exp();
        is_wanted && f64::from(*s).exp() >= f64::from(row.min_p)
    });
    let key = NoiseKey::new(row.seed, row.position);
    likely.map(|&(token, s)| (token, s + noise(key.bits(token)))).collect()
}

/// The token of one row.
pub fn reference(logits: &[f32], row: &ChooseRow, adjustments: &[Adjustment], mask: Option<&[u32]>) -> u32 {
    best(&kept(&candidates(logits, adjustments, mask), row)).map_or(NO_TOKEN, |(token, _)| token)
}

fn best(scores: &[(u32, f32)]) -> Option<(u32, f32)> {
    scores.iter().copied().min_by(most_likely_first)
}

/// Whether a token is as good a choice as the reference's.
pub fn accepts(
    token: u32,
    logits: &[f32],
    row: &ChooseRow,
    adjustments: &[Adjustment],
    mask: Option<&[u32]>,
) -> bool {
    let candidates = candidates(logits, adjustments, mask);
    if candidates.is_empty() {
        return token == NO_TOKEN;
    }
    [1.0, 1.0 - 1e-5, 1.0 + 1e-5].into_iter().any(|slack: f32| {
        let row = ChooseRow { top_p: (row.top_p * slack).min(1.0), min_p: row.min_p / slack, ..row.clone() };
        let scores = kept(&candidates, &row);
        let Some((_, most)) = best(&scores) else { return false };
        scores.iter().any(|(other, score)| *other == token && *score >= most - 1e-4)
    })
}

/// Ways to choose that differ in every parameter.
fn ways() -> Vec<ChooseRow> {
    let warm = ChooseRow { temperature: 0.8, seed: 7, ..ChooseRow::default() };
    let hot = ChooseRow { temperature: 2.5, seed: u64::MAX - 3, ..ChooseRow::default() };
    vec![
        ChooseRow::default(),
        warm.clone(),
        ChooseRow { top_k: 1, ..warm.clone() },
        ChooseRow { top_k: 5, ..hot.clone() },
        ChooseRow { top_p: 0.05, ..warm.clone() },
        ChooseRow { top_p: 0.9, ..hot.clone() },
        ChooseRow { min_p: 0.1, ..hot.clone() },
        ChooseRow { top_k: 40, top_p: 0.95, min_p: 0.02, ..hot.clone() },
        ChooseRow { temperature: 1e-3, ..hot.clone() },
        ChooseRow { temperature: 100.0, ..hot },
    ]
}

/// Small and odd vocabularies, ties, infinities, rows without numbers, every parameter, adjustments and masks.
pub fn cases() -> Vec<Case> {
    let mut rng = Rng(21);
    let mut cases = Vec::new();
    for vocabulary in [1, 31, 90, 1000, 5003] {
        for odd in [false, true] {
            let mut choose = CaseChoose::default();
            // Every third row is adjusted, every fourth masked; some masks allow one token or none.
            for (index, &length) in RAGGED.iter().enumerate() {
                let mut rows = Vec::new();
                for position in 0..length {
                    let mut row = ways()[(index + position) % ways().len()].clone();
                    row.position = position as u32;
                    if odd && position % 3 == 1 {
                        row.adjustments = choose.adjust(&mut rng, vocabulary);
                    }
                    if odd && position % 4 == 2 {
                        row.mask = Some(choose.mask(&mut rng, vocabulary, position));
                    }
                    rows.push(row);
                }
                choose.rows.push(rows);
            }
            let ty = ValueType::f32(Rows::WANTED, vocabulary);
            let name = format!("{vocabulary} tokens, {}", if odd { "adjusted and odd" } else { "plain" });
            let mut case = Case::new(name, Op::Choose, &RAGGED, 0.0).input_of(ty, || match rng.below(97) {
                0 if odd => f32::NAN,
                1 if odd => f32::NEG_INFINITY,
                // Equal to others, so that ties have to be broken.
                2..9 => 3.0,
                9 => 0.0,
                10 => -0.0,
                _ => rng.normal() * 4.0,
            });
            if odd {
                let last = case.inputs[0].sequences.last_mut().expect("there are sequences");
                last[..vocabulary].fill(f32::NAN);
                last[vocabulary..2 * vocabulary].fill(f32::INFINITY);
                last[2 * vocabulary..3 * vocabulary].fill(f32::NEG_INFINITY);
            }
            case.choose = choose;
            cases.push(case);
        }
    }
    cases
}

impl CaseChoose {
    /// Adds adjustments of some tokens and returns their range.
    fn adjust(&mut self, rng: &mut Rng, vocabulary: usize) -> std::ops::Range<u32> {
        let start = self.adjustments.len() as u32;
        for token in (0..vocabulary as u32).step_by(1 + rng.below(7)) {
            let bias = if rng.below(5) == 0 { f32::NEG_INFINITY } else { rng.normal() };
            let (factor, penalty) = (rng.range(0.7, 1.6), rng.range(-0.5, 2.0));
            self.adjustments.push(Adjustment { token, bias, factor, penalty });
        }
        start..self.adjustments.len() as u32
    }

    /// Adds a mask and returns its index.
    fn mask(&mut self, rng: &mut Rng, vocabulary: usize, position: usize) -> u32 {
        let words = mask_words(vocabulary);
        let index = (self.masks.len() / words) as u32;
        let token = rng.below(vocabulary);
        self.masks.extend((0..words).map(|word| match position % 3 {
            0 => u32::from(token / 32 == word) << (token % 32),
            1 if position.is_multiple_of(2) => 0,
            _ => rng.bits() as u32,
        }));
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

    fn shares(row: ChooseRow) -> [f32; 5] {
        let mut counts = [0f32; 5];
        for position in 0..4000 {
            let row = ChooseRow { position, ..row.clone() };
            counts[reference(&LOGITS, &row, &[], None) as usize] += 1.0 / 4000.0;
        }
        counts
    }

    #[test]
    fn noise_stays_within_the_band() {
        assert!(noise(u32::MAX) - noise(0) < BAND);
        assert!(noise(0).is_finite() && noise(u32::MAX).is_finite());
    }

    #[test]
    fn draws_follow_the_softmax() {
        let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        for (got, logit) in shares(ChooseRow { temperature: 1.0, ..Default::default() }).iter().zip(LOGITS) {
            assert!((got - logit.exp() / total).abs() < 0.03, "{got} against {}", logit.exp() / total);
        }
    }

    #[test]
    fn cuts_remove_what_they_should() {
        let hot = ChooseRow { temperature: 5.0, ..Default::default() };
        for row in [
            ChooseRow { top_k: 2, ..hot.clone() },
            ChooseRow { top_p: 0.3, ..hot.clone() },
            ChooseRow { min_p: 0.99, ..hot },
        ] {
            let got = shares(row);
            assert_eq!((got[0], got[2], got[4]), (0.0, 0.0, 0.0));
            assert!(got[1] > 0.4 && got[3] > 0.4, "{got:?}");
        }
    }

    #[test]
    fn the_largest_is_taken_at_temperature_zero() {
        let greedy = ChooseRow::default();
        assert_eq!(reference(&LOGITS, &greedy, &[], None), 1);
        let ban = |token| Adjustment { token, bias: f32::NEG_INFINITY, factor: 1.0, penalty: 0.0 };
        assert_eq!(reference(&LOGITS, &greedy, &[ban(1)], None), 3);
        assert_eq!(reference(&LOGITS, &greedy, &[], Some(&[0b10101])), 2);
        assert_eq!(reference(&LOGITS, &greedy, &[], Some(&[0])), NO_TOKEN);
        assert_eq!(reference(&[f32::NAN, 1.0, f32::NAN], &greedy, &[], None), 1);
        assert_eq!(reference(&[f32::NAN; 2], &greedy, &[], None), NO_TOKEN);
        let infinite = [0.0, f32::INFINITY, 1.0];
        assert_eq!(reference(&infinite, &ChooseRow { temperature: 1.0, ..greedy }, &[], None), 1);
    }
}
