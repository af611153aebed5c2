//! Two levels of scales without minima: integer scales of sub-blocks times a block's f16 scale.

use super::search::{Grid, Part, error, extreme, inverse, nearest_whole, sums, symmetric_scale, to_f16};

/// Scales of a block and the squared error they reach.
#[derive(Clone, Copy)]
pub struct Nested<const SUBS: usize> {
    pub d: f32,
    pub subs: [i8; SUBS],
    error: f32,
}

/// What searching a block needs: its sub-blocks and the range of their scales, `lo` the farther end.
struct Block<'a, const SUBS: usize, const N: usize> {
    parts: &'a [Part<'a, N>; SUBS],
    lo: f32,
    hi: f32,
}

/// The scales with the least squared error; `None` if the plain ones are beyond f16.
pub fn nested<G: Grid, const SUBS: usize, const N: usize>(
    parts: &[Part<N>; SUBS],
    (lo, hi): (f32, f32),
) -> Option<Nested<SUBS>> {
    let block = Block { parts, lo, hi };
    let plain = block.fit::<G>(&parts.map(|p| extreme(p.x) / G::FIRST), &[0.0])?;
    let searched = block.fit::<G>(&parts.map(|p| symmetric_scale::<G, N>(p)), &[0.0, -1.0, 1.0]);
    let refitted = block.refit::<G>(searched.as_ref().unwrap_or(&plain));
    let better =
        |best: Nested<SUBS>, other: Nested<SUBS>| if other.error < best.error { other } else { best };
    Some([searched, refitted].into_iter().flatten().fold(plain, better))
}

impl<const SUBS: usize, const N: usize> Block<'_, SUBS, N> {
    /// Maps the largest scale to the farthest step and the others to the nearest steps.
    fn fit<G: Grid>(&self, scales: &[f32; SUBS], around: &[f32]) -> Option<Nested<SUBS>> {
        let d = to_f16(extreme(scales) / self.lo)?;
        Some(self.settle::<G>(d, scales, around))
    }

    /// Fits `d` to the codes of `from`, then chooses the sub-blocks' scales again.
    fn refit<G: Grid>(&self, from: &Nested<SUBS>) -> Option<Nested<SUBS>> {
        let (mut xq, mut qq) = (0.0, 0.0);
        for (&part, &sub) in self.parts.iter().zip(&from.subs) {
            let sub = f32::from(sub);
            let s = sums::<G, N>(part, from.d * sub);
            xq += s.xq * sub;
            qq += s.qq * sub * sub;
        }
        if qq == 0.0 {
            return None;
        }
        let scales = from.subs.map(|sub| from.d * f32::from(sub));
        Some(self.settle::<G>(to_f16(xq / qq)?, &scales, &[0.0]))
    }

    /// Gives each sub-block the best of the steps `around` the one nearest to its scale.
    fn settle<G: Grid>(&self, d: f32, scales: &[f32; SUBS], around: &[f32]) -> Nested<SUBS> {
        let inv = inverse(d);
        let mut best = Nested { d, subs: [0; SUBS], error: 0.0 };
        for ((&part, scale), sub) in self.parts.iter().zip(scales).zip(&mut best.subs) {
            let nearest = nearest_whole(scale * inv, self.lo, self.hi);
            let mut least = f32::INFINITY;
            for step in around {
                let candidate = (nearest + step).clamp(self.lo, self.hi);
                let error = error::<G, N>(part, d * candidate);
                if error < least {
                    (least, *sub) = (error, candidate as i8);
                }
            }
            best.error += least;
        }
        best
    }
}
