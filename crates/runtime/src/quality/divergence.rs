//! Sums over tokens: likelihood of what came next, and divergence between two distributions.

use serde_json::{Value, json};

/// Logarithms of the softmax of a row.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let log_total = f64::from(max) + total.ln();
    logits.iter().map(|&l| f64::from(l) - log_total).collect()
}

/// Negative log likelihoods of the tokens of a text.
#[derive(Clone, Debug, Default)]
pub struct Likelihood {
    sum: f64,
    squares: f64,
    count: usize,
}

impl Likelihood {
    /// Adds one token, given its log probability.
    pub fn add(&mut self, log_probability: f64) {
        self.sum -= log_probability;
        self.squares += log_probability * log_probability;
        self.count += 1;
    }

    /// Mean negative log likelihood, in nats per token.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// Perplexity, and its standard error as the spread of the tokens gives it.
    pub fn perplexity(&self) -> (f64, f64) {
        let n = self.count as f64;
        let variance = (self.squares / n - self.mean() * self.mean()).max(0.0) / (n - 1.0).max(1.0);
        let perplexity = self.mean().exp();
        (perplexity, perplexity * variance.sqrt())
    }

    /// Everything as JSON.
    pub fn to_json(&self) -> Value {
        let (perplexity, error) = self.perplexity();
        json!({"perplexity": perplexity, "perplexity_error": error, "nats_per_token": self.mean(), "tokens": self.count})
    }
}

/// Divergence of a model from a base, token by token.
#[derive(Clone, Debug, Default)]
pub struct Divergence {
    values: Vec<f64>,
    agreeing: usize,
    largest_logit_difference: f64,
}

/// The shares of tokens whose divergence is reported.
pub const PERCENTILES: [(f64, &str); 4] = [(50.0, "median"), (90.0, "p90"), (99.0, "p99"), (99.9, "p99.9")];

impl Divergence {
    /// Adds one row of logits of the base and of the model; returns both as log probabilities.
    pub fn add(&mut self, base: &[f32], model: &[f32]) -> [Vec<f64>; 2] {
        let (p, q) = (log_softmax(base), log_softmax(model));
        let divergence: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
        // Rounding can leave a tiny negative number where the two agree.
        self.values.push(divergence.max(0.0));
        self.agreeing += usize::from(mambo_engine::argmax(base) == mambo_engine::argmax(model));
        let difference = base.iter().zip(model).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        self.largest_logit_difference = self.largest_logit_difference.max(difference);
        [p, q]
    }

    /// Tokens compared.
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Mean divergence, in nats.
    pub fn mean(&self) -> f64 {
        self.values.iter().sum::<f64>() / self.values.len() as f64
    }

    /// Share of tokens whose most likely successor is the same.
    pub fn agreement(&self) -> f64 {
        self.agreeing as f64 / self.values.len() as f64
    }

    /// The divergences in ascending order.
    pub fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Names and values of what is reported.
    pub fn summary(&self) -> Vec<(&'static str, f64)> {
        let sorted = self.sorted();
        let mut rows = vec![("mean", self.mean())];
        rows.extend(PERCENTILES.iter().map(|(share, name)| (*name, percentile(&sorted, *share))));
        rows.push(("maximum", sorted.last().copied().unwrap_or(f64::NAN)));
        rows
    }

    /// Everything as JSON.
    pub fn to_json(&self) -> Value {
        let nats: serde_json::Map<String, Value> =
            self.summary().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        json!({
            "kld": nats,
            "top1_agreement": self.agreement(),
            "largest_logit_difference": self.largest_logit_difference,
            "tokens": self.values.len(),
        })
    }
}

/// The value below which `share` percent of the sorted values lie (nearest rank).
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    // A hair less, because 99.9 percent of 1000 is a hair more than 999 in binary.
    let rank = (share * sorted.len() as f64 / 100.0 - 1e-9).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rows_do_not_diverge_and_others_do() {
        let mut same = Divergence::default();
        same.add(&[1.0, 2.0, 3.0], &[2.0, 3.0, 4.0]);
        assert!(same.mean() < 1e-12 && same.agreement() == 1.0);
        let mut other = Divergence::default();
        other.add(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        // Half against a quarter and three quarters.
        let want = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((other.mean() - want).abs() < 1e-6);
        assert_eq!(other.agreement(), 0.0);
    }

    #[test]
    fn perplexity_of_a_coin_is_two() {
        let mut likelihood = Likelihood::default();
        (0..10).for_each(|_| likelihood.add(0.5f64.ln()));
        let (perplexity, error) = likelihood.perplexity();
        assert!((perplexity - 2.0).abs() < 1e-9 && error < 1e-6);
    }

    #[test]
    fn percentiles_are_ranks() {
        let sorted: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 50.0), 500.0);
        assert_eq!(percentile(&sorted, 99.9), 999.0);
        assert_eq!(percentile(&[7.0], 50.0), 7.0);
        assert!(percentile(&[], 50.0).is_nan());
    }
}
