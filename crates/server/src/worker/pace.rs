//! How many prompt tokens a step may read beside answers, so that answers keep their pace: measured, because it depends
//! on the model, the machine and how many answer.

use std::time::Duration;

use mambo_engine::StepLoad;

/// A step with prompt tokens may take this many times as long as one without.
const STRETCH: f64 = 2.0;
/// Share of a new measurement in the mean.
const WEIGHT: f64 = 0.2;
/// Prompts go on at least this fast, whatever it costs answers.
const LEAST_TOKENS: usize = 8;

/// Means of what steps took.
#[derive(Debug)]
pub(super) struct Pace {
    /// Seconds of a step that only answers.
    answers: Option<f64>,
    /// Seconds that a prompt token adds.
    prompt_token: Option<f64>,
}

impl Pace {
    pub fn new() -> Pace {
        Pace { answers: None, prompt_token: None }
    }

    /// Prompt tokens of the next step, if sequences answer in it.
    pub fn prompt_room(&self) -> usize {
        match (self.answers, self.prompt_token) {
            (Some(answers), Some(token)) if token > 0.0 => {
                (((STRETCH - 1.0) * answers / token) as usize).max(LEAST_TOKENS)
            }
            // Nothing is known: a little, to learn from.
            _ => 4 * LEAST_TOKENS,
        }
    }

    /// Learns from a step.
    pub fn note(&mut self, load: StepLoad, took: Duration) {
        let seconds = took.as_secs_f64();
        match (load.answers, load.prompt_tokens) {
            (0, 0) => {}
            (_, 0) => mean(&mut self.answers, seconds),
            (0, tokens) => {
                // A whole step of prompts alone bounds what a token adds, until one beside answers tells.
                if self.prompt_token.is_none() {
                    self.prompt_token = Some(seconds / tokens as f64);
                }
            }
            (_, tokens) => {
                if let Some(answers) = self.answers {
                    mean(&mut self.prompt_token, (seconds - answers).max(0.0) / tokens as f64);
                }
            }
        }
    }
}

fn mean(value: &mut Option<f64>, new: f64) {
    *value = Some(value.map_or(new, |old| old + WEIGHT * (new - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_take_what_answers_can_spare() {
        let mut pace = Pace::new();
        let ms = Duration::from_millis;
        for _ in 0..40 {
            pace.note(StepLoad { answers: 2, prompt_tokens: 0 }, ms(10));
            pace.note(StepLoad { answers: 2, prompt_tokens: 50 }, ms(20));
        }
        assert!((45..=55).contains(&pace.prompt_room()), "{pace:?}");
        for _ in 0..40 {
            pace.note(StepLoad { answers: 2, prompt_tokens: 50 }, ms(1010));
        }
        assert_eq!(pace.prompt_room(), LEAST_TOKENS);
    }
}
