//! Rotary positions: which channels are rotated together, and how fast.

use std::f64::consts::TAU;

/// Which channels of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// Channel `i` and channel `i + rotary/2`.
    Halves,
    /// Channels `2i` and `2i + 1`.
    Neighbours,
}

/// How a model was stretched beyond the context it was first trained for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, those between blended.
    Llama3 {
        /// Factor on low frequencies.
        factor: f64,
        /// Turns within the original context up to which a frequency is low.
        low: f64,
        /// Turns within the original context from which a frequency is high.
        high: f64,
        /// The original context.
        original: f64,
    },
    /// YaRN: a ramp over the channels from kept to divided frequencies, and a factor on the rotated values.
    Yarn {
        /// Factor on low frequencies.
        factor: f64,
        /// The original context.
        original: f64,
        /// Turns within the original context above which a frequency is kept.
        fast: f64,
        /// Turns within the original context below which a frequency is divided.
        slow: f64,
        /// Whether the ends of the ramp are whole channels.
        truncate: bool,
        /// Factor on the rotated values.
        magnitude: f64,
    },
}

/// The rotary positions of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Channels per head.
    pub head_dim: usize,
    /// Channels of a head that are rotated: the first ones, an even number.
    pub rotary: usize,
    /// Which of them make a pair.
    pub pairs: RopePairs,
    /// The slowest wave is about this many times `2π` positions long.
    pub base: f64,
    /// How the model was stretched.
    pub scaling: RopeScaling,
    /// Whether a weight divides the frequencies besides.
    pub has_factors: bool,
}

impl Rope {
    /// The factor that YaRN multiplies rotated values with where a file does not say.
    pub fn yarn_magnitude(factor: f64) -> f64 {
        if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
    }

    /// Radians per position of every pair.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let pairs = self.rotary / 2;
        let plain = |i: usize| self.base.powf(-2.0 * i as f64 / self.rotary as f64);
        let divided = |i: usize| factors.map_or(1.0, |factors| f64::from(factors[i]));
        (0..pairs).map(|i| self.scaled(i, plain(i)) / divided(i)).collect()
    }

    /// Factor on the rotated values.
    pub fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { magnitude, .. } => magnitude,
            _ => 1.0,
        }
    }

    fn scaled(&self, pair: usize, frequency: f64) -> f64 {
        match self.scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low, high, original } => {
                let turns = original * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                blend(frequency, factor, kept)
            }
            RopeScaling::Yarn { factor, original, fast, slow, truncate, .. } => {
                let ends = [fast, slow].map(|turns| self.channel_of(turns, original));
                let [from, to] = if truncate { [ends[0].floor(), ends[1].ceil()] } else { ends };
                let (from, to) = (from.max(0.0), to.min(self.rotary as f64 - 1.0));
                // A ramp of no width is a step.
                let width = if to == from { 0.001 } else { to - from };
                let kept = 1.0 - ((pair as f64 - from) / width).clamp(0.0, 1.0);
                blend(frequency, factor, kept)
            }
        }
    }

    /// The pair, as a real number, whose frequency makes so many turns within a context.
    fn channel_of(&self, turns: f64, context: f64) -> f64 {
        self.rotary as f64 * (context / (turns * TAU)).ln() / (2.0 * self.base.ln())
    }
}

/// A share of the frequency itself, the rest of it divided.
fn blend(frequency: f64, factor: f64, kept: f64) -> f64 {
    kept * frequency + (1.0 - kept) * frequency / factor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        let (head_dim, pairs) = (8, RopePairs::Halves);
        Rope { head_dim, rotary: 8, pairs, base: 10_000.0, scaling, has_factors: false }
    }

    #[test]
    fn frequencies_fall_by_the_base() {
        let plain = rope(RopeScaling::None).frequencies(None);
        let wanted = [1.0, 0.1, 0.01, 0.001];
        assert!(plain.iter().zip(wanted).all(|(f, want)| (f / want - 1.0).abs() < 1e-12), "{plain:?}");
    }

    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };
        let (plain, scaled) = (rope(RopeScaling::None).frequencies(None), rope(scaling).frequencies(None));
        assert_eq!(plain[0], scaled[0]);
        assert!(scaled[1] < plain[1] && scaled[1] > plain[1] / 8.0);
        assert_eq!(scaled[3], plain[3] / 8.0);
    }
}
