//! `choose`: the token of each wanted row, from its logits and the step's [`ChooseRow`]. An item is a row.
//!
//! The row is read once for its maximum, and once more for the tokens in the band below it where one is drawn. Of those
//! only as many are put in order as `top_k`, `top_p` and `min_p` look at, and only those whose random bits could win
//! have their logarithms computed. 4 bytes per logit and pass. A row's mask is made by the thread that takes the row.
#![allow(unsafe_code)]

use mambo_kernel::ops::choose::{BAND, NoiseKey, adjusted, most_likely_first, noise};
use mambo_kernel::{Adjustment, ChooseRow, NO_TOKEN, OpKind, Operand, mask_words};

use super::declaration::{Binding, Declaration};
use super::{Cx, Scratch, ScratchNeed, Work};
use crate::isa::Isa;
use crate::simd::{LANES, Simd, part, vectors};

/// Logits whose maximum is taken together.
const BLOCK: usize = 64 * LANES;
/// Candidates that are put in order at first; later as many as are in order already.
const FIRST_SORTED: usize = 256;

pub(crate) struct Choose {
    pub logits: Operand,
    pub out: Operand,
}

/// A row of logits after adjustments, and its largest.
struct Row<'a> {
    logits: &'a [f32],
    max: f32,
    /// The first token that has it.
    best: u32,
}

impl<'a> Row<'a> {
    /// Finds the largest logit; none where every one is NaN or minus infinity.
    #[inline(always)]
    fn new<S: Simd>(logits: &'a [f32]) -> Option<Row<'a>> {
        let (mut max, mut first_block) = (f32::NEG_INFINITY, 0);
        for (index, block) in logits.chunks(BLOCK).enumerate() {
            let largest = block_max::<S>(block);
            if largest > max {
                (max, first_block) = (largest, index);
            }
        }
        if max == f32::NEG_INFINITY {
            return None;
        }
        let start = first_block * BLOCK;
        let place = logits[start..].iter().position(|logit| *logit == max)?;
        Some(Row { logits, max, best: (start + place) as u32 })
    }

    /// The scaled distance from the largest.
    #[inline(always)]
    fn scaled(&self, token: u32, how: &ChooseRow) -> f32 {
        (self.logits[token as usize] - self.max) / how.temperature
    }

    /// Collects the tokens that may be drawn and says how many there are.
    #[inline(always)]
    fn band(&self, how: &ChooseRow, tokens: &mut [i32]) -> usize {
        // Whole vectors below this are skipped; rounding of the quotient makes the bound a little lower.
        let bound = self.max - BAND * how.temperature * 1.001;
        let mut count = 0;
        for (index, block) in self.logits.chunks(LANES).enumerate() {
            if !block.iter().fold(false, |any, logit| any | (*logit >= bound)) {
                continue;
            }
            for token in index * LANES..index * LANES + block.len() {
                if self.scaled(token as u32, how) >= -BAND {
                    tokens[count] = token as i32;
                    count += 1;
                }
            }
        }
        count
    }
}

/// The largest of some logits that is a number.
#[inline(always)]
fn block_max<S: Simd>(block: &[f32]) -> f32 {
    let mut lanes = S::splat(f32::NEG_INFINITY);
    for i in 0..vectors(block.len()) {
        let own = part(block, i);
        if own.len() < LANES {
            // A short vector is filled up with zeros, which must not count.
            return own.iter().fold(S::max_lane(lanes), |max, logit| max.max(*logit));
        }
        // The running maximum comes second: it is what a NaN leaves.
        lanes = S::max(S::load_part(own), lanes);
    }
    S::max_lane(lanes)
}

/// Tokens, the most likely first; only those that are looked at are put in order.
struct InOrder<'a> {
    row: &'a Row<'a>,
    tokens: &'a mut [i32],
    sorted: usize,
}

impl InOrder<'_> {
    fn get(&mut self, index: usize) -> Option<u32> {
        let logits = self.row.logits;
        let key = |token: &i32| (token.cast_unsigned(), logits[*token as usize]);
        let order = |a: &i32, b: &i32| most_likely_first(&key(a), &key(b));
        while index >= self.sorted && self.sorted < self.tokens.len() {
            let rest = &mut self.tokens[self.sorted..];
            let more = rest.len().min(self.sorted.max(FIRST_SORTED));
            if more < rest.len() {
                rest.select_nth_unstable_by(more, order);
            }
            rest[..more].sort_unstable_by(order);
            self.sorted += more;
        }
        self.tokens.get(index).map(|token| token.cast_unsigned())
    }
}

/// How many of the most likely tokens are kept, which come first afterwards.
fn keep(row: &Row, how: &ChooseRow, tokens: &mut [i32]) -> usize {
    let top_k = if how.top_k == 0 { tokens.len() } else { tokens.len().min(how.top_k as usize) };
    if top_k == tokens.len() && how.top_p >= 1.0 && how.min_p <= 0.0 {
        return top_k;
    }
    let mut ordered = InOrder { row, tokens, sorted: 0 };
    if how.top_p >= 1.0 && how.min_p <= 0.0 {
        let _ = ordered.get(top_k - 1);
        return top_k;
    }
    let weight = |token: u32| f64::from(row.scaled(token, how)).exp();
    let total: f64 = match how.top_p >= 1.0 {
        true => f64::INFINITY,
        false if top_k == ordered.tokens.len() => {
            ordered.tokens.iter().map(|token| weight(*token as u32)).sum()
        }
        false => (0..top_k).filter_map(|index| ordered.get(index)).map(weight).sum(),
    };
    let (mut kept, mut sum) = (0, 0.0);
    while kept < top_k && sum < f64::from(how.top_p) * total {
        let Some(own) = ordered.get(kept).map(weight).filter(|own| *own >= f64::from(how.min_p)) else {
            break;
        };
        sum += own;
        kept += 1;
    }
    kept
}

/// The token with the largest score; ties go to the lower id.
fn draw(row: &Row, how: &ChooseRow, tokens: &[i32]) -> u32 {
    let key = NoiseKey::new(how.seed, how.position);
    let mut best = (row.best, f32::NEG_INFINITY);
    for &token in tokens {
        let token = token.cast_unsigned();
        let (scaled, bits) = (row.scaled(token, how), key.bits(token));
        // With u from 24 bits, 1 - u is at least 2^-(z+1) where z of its bits are zero in front, and the noise at most
        // -ln(1 - u).
        let zeros = (!bits >> 8).leading_zeros() - 8;
        if scaled + (zeros + 1) as f32 * std::f32::consts::LN_2 < best.1 {
            continue;
        }
        let score = scaled + noise(bits);
        if score > best.1 || (score == best.1 && token < best.0) {
            best = (token, score);
        }
    }
    best.0
}

/// Applies adjustments and mask to a copy of the logits.
fn adjust(logits: &[f32], changes: &[Adjustment], mask: Option<&[u32]>, into: &mut [f32]) {
    into.copy_from_slice(logits);
    for change in changes {
        if let Some(logit) = into.get_mut(change.token as usize) {
            *logit = adjusted(*logit, change);
        }
    }
    for (logits, allowed) in into.chunks_mut(32).zip(mask.unwrap_or_default()) {
        for (bit, logit) in logits.iter_mut().enumerate() {
            *logit = if allowed >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
        }
    }
}

impl Choose {
    /// The next row of this thread. Rows with a mask come first: making one can take longer than all that choosing
    /// does, and a thread that began with the last of them would be waited for.
    #[inline(always)]
    fn next(&self, cx: &Cx, rows: usize) -> Option<usize> {
        let is_masked = |index: &usize| cx.step.choose.rows[*index].mask.is_some();
        for (phase, masked) in [(0, true), (1, false)] {
            while let Some(index) = cx.next(phase, rows) {
                if is_masked(&index) == masked {
                    return Some(index);
                }
            }
        }
        None
    }
}

impl Work for Choose {
    #[inline(always)]
    fn work<S: Simd>(&self, cx: &Cx, scratch: &mut Scratch) {
        let (logits, out) = (cx.view(&self.logits), cx.view(&self.out));
        let (choose, vocabulary) = (cx.step.choose, self.logits.cols);
        while let Some(index) = self.next(cx, logits.rows()) {
            let (how, plain) = (&choose.rows[index], logits.row(index));
            let changes = &choose.adjustments[how.adjustments.start as usize..how.adjustments.end as usize];
            let mask = how.mask.map(|number| {
                let mask: &mut [u32] = bytemuck::cast_slice_mut(&mut scratch.words[..mask_words(vocabulary)]);
                choose.masks.fill(number, mask);
                &*mask
            });
            let row = if changes.is_empty() && mask.is_none() {
                Row::new::<S>(plain)
            } else {
                let copy = &mut scratch.floats[..vocabulary];
                adjust(plain, changes, mask, copy);
                Row::new::<S>(copy)
            };
            let token = match row {
                None => NO_TOKEN,
                Some(row) if how.temperature == 0.0 || row.max == f32::INFINITY => row.best,
                Some(row) => {
                    let tokens = &mut scratch.words[..vocabulary];
                    let count = row.band(how, tokens);
                    let kept = keep(&row, how, &mut tokens[..count]);
                    draw(&row, how, &tokens[..kept])
                }
            };
            // SAFETY: a row belongs to one item.
            unsafe { out.index_row_mut(index)[0] = token };
        }
    }

    fn scratch(&self, _: usize) -> ScratchNeed {
        ScratchNeed { floats: self.logits.cols, words: self.logits.cols, ..ScratchNeed::default() }
    }
}

pub(super) fn declare(isa: Isa) -> Vec<Declaration> {
    let bind = |b: &Binding| b.kernel(Choose { logits: b.x(), out: b.out() });
    vec![Declaration::new(isa, OpKind::Choose, "f32", bind).shared()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_looked_at_is_in_order() {
        let logits: Vec<f32> = (0..5000).map(|i| (i * 7919 % 1009) as f32).collect();
        let mut want: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        want.sort_by(most_likely_first);
        let row = Row { logits: &logits, max: 1008.0, best: 0 };
        let mut tokens: Vec<i32> = (0..5000).collect();
        let mut ordered = InOrder { row: &row, tokens: &mut tokens, sorted: 0 };
        assert_eq!((ordered.get(3), ordered.sorted), (Some(want[3].0), FIRST_SORTED));
        let found: Vec<_> = (0..).map_while(|index| ordered.get(index)).collect();
        assert_eq!(found, want.iter().map(|token| token.0).collect::<Vec<_>>());
    }

    #[test]
    fn no_candidate_that_could_win_is_skipped() {
        for bits in (0..u32::MAX).step_by(104_729).chain([u32::MAX, u32::MAX - 255, 0]) {
            let zeros = (!bits >> 8).leading_zeros() - 8;
            assert!(noise(bits) <= (zeros + 1) as f32 * std::f32::consts::LN_2, "{bits:x}");
        }
    }
}
