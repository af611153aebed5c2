//! How a request wants its tokens chosen, as the `choose` op takes it; and log probabilities, which are computed from
//! rows of logits where a request asks for them. Knows ids and numbers, nothing of sequences or text.

use mambo_kernel::{Adjustment, ChooseRow};

use crate::history::History;

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
    /// Whether the choice depends on the tokens before it, so that they must have been seen.
    pub fn needs_history(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// How the token of a position is chosen, without adjustments and mask.
    pub(crate) fn choose_row(&self, position: usize) -> ChooseRow {
        ChooseRow {
            temperature: self.temperature,
            top_k: u32::try_from(self.top_k).unwrap_or(0),
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
            position: position as u32,
            adjustments: 0..0,
            mask: None,
        }
    }

    /// Appends the adjustments that follow from the tokens so far, sorted by token, each once.
    pub(crate) fn adjust(&self, history: &History, into: &mut Vec<Adjustment>) {
        let start = into.len();
        let plain = |token: u32| Adjustment { token, bias: 0.0, factor: 1.0, penalty: 0.0 };
        if self.needs_history() {
            into.extend(history.seen().map(|(token, generated)| {
                let frequency = self.frequency_penalty * generated as f32;
                let penalty = if generated > 0 { self.presence_penalty + frequency } else { 0.0 };
                Adjustment { factor: self.repetition_penalty, penalty, ..plain(token) }
            }));
        }
        if !self.logit_bias.is_empty() {
            into.extend(self.logit_bias.iter().map(|&(token, bias)| Adjustment { bias, ..plain(token) }));
            into[start..].sort_by_key(|change| change.token);
            merge_equal_tokens(into, start);
        }
    }

    /// The first invalid value, as a sentence.
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
        // Minus infinity bans a token; NaN or infinity would decide every choice.
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

/// Leaves one adjustment for each token of a sorted list: biases and penalties add up, a factor counts once.
fn merge_equal_tokens(list: &mut Vec<Adjustment>, start: usize) {
    let mut kept = start;
    for index in start..list.len() {
        let next = list[index];
        match list[start..kept].last_mut() {
            Some(last) if last.token == next.token => {
                last.bias += next.bias;
                last.penalty += next.penalty;
                last.factor = if next.factor == 1.0 { last.factor } else { next.factor };
            }
            _ => {
                list[kept] = next;
                kept += 1;
            }
        }
    }
    list.truncate(kept);
}

/// The index of the largest value, ties to the lower; NaN never wins.
pub fn argmax(values: &[f32]) -> u32 {
    // Separate lanes let the compiler vectorise the comparison.
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
pub(crate) fn logprobs(logits: &[f32], token: u32, count: usize) -> Logprobs {
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

#[cfg(test)]
mod tests {
    use mambo_kernel::ops::choose;

    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -3.0];

    /// The most likely token once the adjustments are applied.
    fn choose(params: &SamplingParams, generated: &[u32]) -> u32 {
        let mut changes = Vec::new();
        params.adjust(&History::counting(&[], generated), &mut changes);
        assert!(changes.windows(2).all(|two| two[0].token < two[1].token), "{changes:?}");
        choose::reference(&LOGITS, &params.choose_row(0), &changes, None)
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
    fn log_probabilities_sum_to_one() {
        let got = logprobs(&LOGITS, 4, 2);
        let total: f32 = LOGITS.iter().map(|l| l.exp()).sum();
        assert!((got.chosen - (-3.0 - total.ln())).abs() < 1e-5);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn a_token_is_adjusted_once() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            frequency_penalty: 0.5,
            logit_bias: vec![(3, 1.0), (1, 0.25), (3, 1.0)],
            ..Default::default()
        };
        let mut changes = vec![Adjustment { token: 9, bias: 0.0, factor: 1.0, penalty: 0.0 }];
        params.adjust(&History::counting(&[1, 1], &[3, 3]), &mut changes);
        let change = |token, bias, penalty| Adjustment { token, bias, factor: 2.0, penalty };
        assert_eq!(changes[1..], [change(1, 0.25, 0.0), change(3, 2.0, 1.0)]);
    }

    #[test]
    fn invalid_values_are_named() {
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
