//! From a row of logits to a token. Knows ids and numbers, nothing of sequences or text.
//!
//! The random number of a token depends on the seed and the token's position alone, so a sampled
//! answer is the same whatever it was batched with, and replaying a position repeats its choice.

use crate::draw::draw;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token; otherwise logits are divided by this.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens already seen; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens generated before.
    pub presence_penalty: f32,
    /// Subtracted once for every time a token was generated before.
    pub frequency_penalty: f32,
    /// Seed of the random choice.
    pub seed: u64,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Report the log probability of the chosen token and of this many alternatives.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logit_bias: Vec::new(),
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Whether logits are changed before the choice.
    fn adjusts(&self) -> bool {
        !self.logit_bias.is_empty()
            || self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// The first value that makes no sense, as a sentence.
    pub fn problem(&self) -> Option<String> {
        let checks = [
            (
                "temperature",
                self.temperature,
                self.temperature.is_finite() && self.temperature >= 0.0,
                "0 or more",
            ),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
                "above 0",
            ),
            ("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), "a number"),
            ("frequency_penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), "a number"),
        ];
        // Minus infinity bans a token; anything else that is no number would poison the choice.
        let is_bad = |bias: f32| bias.is_nan() || bias == f32::INFINITY;
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| is_bad(*bias)) {
            return Some(format!("logit_bias of token {token} is {bias}; it must be a number"));
        }
        let bad = checks.iter().find(|check| !check.2);
        bad.map(|(name, value, _, want)| format!("{name} is {value}; it must be {want}"))
    }
}

/// Log probabilities of one chosen token, from the logits before any adjustment.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens with theirs, best first.
    pub top: Vec<(u32, f32)>,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Log probabilities, if asked for.
    pub logprobs: Option<Logprobs>,
}

/// Reusable buffers, so that plain sampling allocates nothing per token once warm; penalties and log
/// probabilities do.
#[derive(Debug, Default)]
pub struct Sampler {
    logits: Vec<f32>,
    candidates: Vec<(u32, f32)>,
}

/// What sampling needs to know of the tokens before.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// The prompt.
    pub prompt: &'a [u32],
    /// What was generated since.
    pub generated: &'a [u32],
}

impl Sampler {
    /// Chooses the token that follows `history`.
    pub fn choose(&mut self, logits: &[f32], params: &SamplingParams, history: History) -> Choice {
        let adjusted = if params.adjusts() {
            self.logits.clear();
            self.logits.extend_from_slice(logits);
            adjust(&mut self.logits, params, history);
            &self.logits
        } else {
            logits
        };
        let token = if params.temperature == 0.0 {
            argmax(adjusted)
        } else {
            let position = (history.prompt.len() + history.generated.len()) as u64;
            draw(adjusted, &mut self.candidates, params, unit_random(params.seed, position))
        };
        Choice { token, logprobs: params.logprobs.map(|count| logprobs(logits, token, count)) }
    }
}

/// Applies biases and penalties.
fn adjust(logits: &mut [f32], params: &SamplingParams, history: History) {
    for &(token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
    if params.repetition_penalty != 1.0 {
        let mut seen: Vec<u32> = history.prompt.iter().chain(history.generated).copied().collect();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit > 0.0 {
                    *logit / params.repetition_penalty
                } else {
                    *logit * params.repetition_penalty
                };
            }
        }
    }
    if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
        let mut generated = history.generated.to_vec();
        generated.sort_unstable();
        for run in generated.chunk_by(|a, b| a == b) {
            if let Some(logit) = logits.get_mut(run[0] as usize) {
                *logit -= params.presence_penalty + params.frequency_penalty * run.len() as f32;
            }
        }
    }
}

/// The index of the largest value, ties to the lower; NaN never wins.
pub fn argmax(values: &[f32]) -> u32 {
    // Lanes of their own, so that the compiler compares several values at once.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, value| max.max(*value));
    values.iter().position(|value| *value == max).unwrap_or(0) as u32
}

/// Log probabilities of the chosen token and of the best `count`.
fn logprobs(logits: &[f32], token: u32, count: usize) -> Logprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let log_total = f64::from(max) + total.ln();
    let of = |logit: f32| (f64::from(logit) - log_total) as f32;
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, by);
    }
    order.truncate(count);
    order.sort_unstable_by(by);
    let top = order.into_iter().map(|i| (i, of(logits[i as usize]))).collect();
    Logprobs { chosen: of(logits[token as usize]), top }
}

/// A number in `[0, 1)` from a seed and a position (splitmix64).
fn unit_random(seed: u64, position: u64) -> f64 {
    let mut z = seed.wrapping_add(position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

    fn choose(params: &SamplingParams, generated: &[u32]) -> u32 {
        Sampler::default().choose(&LOGITS, params, History { prompt: &[], generated }).token
    }

    /// How often each token is drawn at many positions.
    fn shares(params: SamplingParams) -> [f32; 5] {
        let mut counts = [0f32; 5];
        for seed in 0..4000 {
            counts[choose(&SamplingParams { seed, ..params.clone() }, &[]) as usize] += 1.0 / 4000.0;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_best() {
        assert_eq!(choose(&SamplingParams::default(), &[]), 1);
    }

    #[test]
    fn the_first_of_the_largest_is_found_anywhere() {
        for len in [1, 15, 16, 17, 100] {
            for at in 0..len {
                let mut values = vec![-1.0; len];
                (values[at], values[len - 1]) = (2.0, 2.0);
                values[0] = if at == 0 { 2.0 } else { f32::NAN };
                assert_eq!(argmax(&values), at as u32, "{len} values");
            }
        }
        assert_eq!(argmax(&[f32::NAN; 40]), 0);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 40]), 0);
    }

    #[test]
    fn temperature_follows_the_softmax() {
        let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        let got = shares(SamplingParams { temperature: 1.0, ..Default::default() });
        for (got, logit) in got.iter().zip(LOGITS) {
            assert!((got - logit.exp() / total).abs() < 0.03, "{got} against {}", logit.exp() / total);
        }
    }

    #[test]
    fn cuts_remove_what_they_should() {
        let hot = SamplingParams { temperature: 5.0, ..Default::default() };
        let top_k = shares(SamplingParams { top_k: 2, ..hot.clone() });
        assert_eq!((top_k[0], top_k[2], top_k[4]), (0.0, 0.0, 0.0));
        let top_p = shares(SamplingParams { top_p: 0.3, ..hot.clone() });
        assert_eq!((top_p[0], top_p[2], top_p[4]), (0.0, 0.0, 0.0));
        let min_p = shares(SamplingParams { min_p: 0.99, ..hot });
        assert!(min_p[1] > 0.4 && min_p[3] > 0.4);
    }

    #[test]
    fn penalties_and_bias_move_the_choice() {
        let frequency = SamplingParams { frequency_penalty: 1.5, ..Default::default() };
        assert_eq!(choose(&frequency, &[1]), 3);
        let presence = SamplingParams { presence_penalty: 1.5, ..Default::default() };
        assert_eq!(choose(&presence, &[1, 3, 3]), 2);
        let repetition = SamplingParams { repetition_penalty: 3.0, ..Default::default() };
        assert_eq!(choose(&repetition, &[1]), 3);
        let bias = SamplingParams { logit_bias: vec![(4, 9.0), (77, 1.0)], ..Default::default() };
        assert_eq!(choose(&bias, &[]), 4);
    }

    #[test]
    fn logprobs_are_of_the_raw_logits() {
        let params = SamplingParams { logprobs: Some(2), logit_bias: vec![(4, 9.0)], ..Default::default() };
        let choice = Sampler::default().choose(&LOGITS, &params, History { prompt: &[], generated: &[] });
        let got = choice.logprobs.expect("asked for");
        let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        assert!((got.chosen - (-3.0 - total.ln())).abs() < 1e-5);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn nan_logits_never_win() {
        let logits = [f32::NAN, 1.0, f32::NAN];
        let history = History { prompt: &[], generated: &[] };
        let hot = SamplingParams { temperature: 1.0, ..Default::default() };
        assert_eq!(Sampler::default().choose(&logits, &SamplingParams::default(), history).token, 1);
        assert_eq!(Sampler::default().choose(&logits, &hot, history).token, 1);
        assert_eq!(Sampler::default().choose(&[f32::NAN], &hot, history).token, 0);
        let infinite = [0.0, f32::INFINITY, 1.0];
        assert_eq!(Sampler::default().choose(&infinite, &hot, history).token, 1);
    }

    #[test]
    fn nonsense_is_named() {
        let bad = SamplingParams { top_p: 1.5, ..Default::default() };
        assert_eq!(bad.problem().unwrap(), "top_p is 1.5; it must be above 0 and at most 1");
        assert!(SamplingParams { temperature: f32::NAN, ..Default::default() }.problem().is_some());
        assert!(
            SamplingParams { logit_bias: vec![(3, f32::INFINITY)], ..Default::default() }.problem().is_some()
        );
        assert!(
            SamplingParams { logit_bias: vec![(3, f32::NEG_INFINITY)], ..Default::default() }
                .problem()
                .is_none()
        );
        assert!(SamplingParams::default().problem().is_none());
    }
}
