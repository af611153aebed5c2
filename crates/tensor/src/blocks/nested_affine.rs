//! Two levels of scales and minima: integers of sub-blocks times a block's f16 `d` and `dmin`.
//!
//! value = d · scale · code − dmin · min

use super::affine::{Line, Moments, moments, search, trial};
use super::search::{Part, inverse, nearest_whole, to_f16};

/// Scales and minima of a block and the squared error they reach.
#[derive(Clone, Copy)]
pub struct NestedAffine<const SUBS: usize> {
    pub d: f32,
    pub dmin: f32,
    pub scales: [u8; SUBS],
    pub mins: [u8; SUBS],
    error: f32,
}

impl<const SUBS: usize> NestedAffine<SUBS> {
    /// The line of sub-block `j`.
    pub fn line(&self, j: usize) -> Line {
        line(self.d, f32::from(self.scales[j]), self.dmin, f32::from(self.mins[j]))
    }
}

fn line(d: f32, scale: f32, dmin: f32, min: f32) -> Line {
    Line { scale: d * scale, low: -(dmin * min) }
}

/// What searching a block needs: its sub-blocks, the last code and the last step of scales and minima.
struct Block<'a, const SUBS: usize, const N: usize> {
    parts: &'a [Part<'a, N>; SUBS],
    moments: [Moments; SUBS],
    hi: f32,
    steps: f32,
}

/// The scales with the least squared error; `None` if the plain ones are beyond f16.
pub fn nested_affine<const SUBS: usize, const N: usize>(
    parts: &[Part<N>; SUBS],
    hi: f32,
    steps: f32,
) -> Option<NestedAffine<SUBS>> {
    let block = Block { parts, moments: parts.map(moments), hi, steps };
    let plain = block.fit(&parts.map(|p| Line::plain(p.x, hi, true)), &[0.0])?;
    let searched = block.fit(&parts.map(|p| search(p, hi, true)), &[0.0, -1.0, 1.0]);
    let refitted = block.refit(searched.as_ref().unwrap_or(&plain));
    let better = |best: NestedAffine<SUBS>, other: NestedAffine<SUBS>| {
        if other.error < best.error { other } else { best }
    };
    Some([searched, refitted].into_iter().flatten().fold(plain, better))
}

impl<const SUBS: usize, const N: usize> Block<'_, SUBS, N> {
    /// Maps the largest scale and minimum to the last step and the others to the nearest steps.
    fn fit(&self, lines: &[Line; SUBS], around: &[f32]) -> Option<NestedAffine<SUBS>> {
        let d = to_f16(lines.iter().fold(0f32, |m, l| m.max(l.scale)) / self.steps)?;
        let dmin = to_f16(lines.iter().fold(0f32, |m, l| m.max(-l.low)) / self.steps)?;
        Some(self.settle(d, dmin, lines, around))
    }

    /// Fits `d` and `dmin` to the codes of `from` by least squares, then chooses the steps again.
    fn refit(&self, from: &NestedAffine<SUBS>) -> Option<NestedAffine<SUBS>> {
        // Normal equations of x ≈ d·a − dmin·b with a = scale·code and b = min.
        let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0f64, 0f64, 0f64, 0f64, 0f64);
        for (j, &part) in self.parts.iter().enumerate() {
            let (scale, min) = (f32::from(from.scales[j]), f32::from(from.mins[j]));
            let (all, t) = (&self.moments[j], trial(part, from.line(j), self.hi));
            aa += f64::from(scale * scale * t.qq);
            ab += f64::from(scale * min * t.q);
            bb += f64::from(min * min * all.w);
            xa += f64::from(scale * t.xq);
            xb += f64::from(min * all.x);
        }
        let det = aa * bb - ab * ab;
        let (d, dmin) = if det > 0.0 {
            ((xa * bb - xb * ab) / det, (xa * ab - xb * aa) / det)
        } else if aa > 0.0 {
            (xa / aa, 0.0)
        } else {
            return None;
        };
        if d < 0.0 || dmin < 0.0 {
            return None;
        }
        let lines = std::array::from_fn(|j| from.line(j));
        Some(self.settle(to_f16(d as f32)?, to_f16(dmin as f32)?, &lines, &[0.0]))
    }

    /// Gives each sub-block the best of the scale steps `around` the nearest, each with the best minimum for its codes.
    fn settle(&self, d: f32, dmin: f32, lines: &[Line; SUBS], around: &[f32]) -> NestedAffine<SUBS> {
        let (inv, inv_min) = (inverse(d), inverse(dmin));
        let mut best = NestedAffine { d, dmin, scales: [0; SUBS], mins: [0; SUBS], error: 0.0 };
        for (j, &part) in self.parts.iter().enumerate() {
            let nearest = nearest_whole(lines[j].scale * inv, 0.0, self.steps);
            let nearest_min = nearest_whole(-lines[j].low * inv_min, 0.0, self.steps);
            let mut least = f32::INFINITY;
            let mut keep = |scale: f32, min: f32| {
                let t = trial(part, line(d, scale, dmin, min), self.hi);
                if t.error < least {
                    least = t.error;
                    (best.scales[j], best.mins[j]) = (scale as u8, min as u8);
                }
                // The best minimum for these codes.
                let low = (self.moments[j].x - d * scale * t.q) / self.moments[j].w;
                nearest_whole(-low * inv_min, 0.0, self.steps)
            };
            for step in around {
                let scale = (nearest + step).clamp(0.0, self.steps);
                let min = keep(scale, nearest_min);
                if around.len() > 1 && min != nearest_min {
                    keep(scale, min);
                }
            }
            best.error += least;
        }
        best
    }
}
