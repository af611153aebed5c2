//! How many prompt tokens a step may read beside answers, so that answers keep their pace: measured, because it depends
//! on the model, the machine and how many answer.

use std::time::Duration;

use mambo_engine::StepLoad;

/// A step with prompt tokens may take this many times as long as one without.
const STRETCH: f64 = 2.0;
/// Share of a new measurement in the mean.
const WEIGHT: f64 = 0.2;
/// The same where a prompt token adds less than before. What was dear is forgotten slowly: few tokens may cost far less
/// each than one more, and then too many steps would try that one.
const FALL: f64 = 0.1;
/// A measurement counts as at most so many times the mean, and as no less than its inverse: a step during which the
/// system ran something else says nothing about the next.
const MOST_CHANGE: f64 = 2.0;
/// Prompt tokens of a step before anything is known.
const FIRST_TOKENS: usize = 2;
/// Seconds that the system's scheduler may run another thread for; steps that take less are quick.
const SLICE: f64 = 0.005;

/// Means of what steps took.
#[derive(Debug)]
pub(super) struct Pace {
    /// Seconds of a step that only answers.
    answers: Option<f64>,
    /// Seconds that a prompt token adds beside answers.
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
                (((STRETCH - 1.0) * answers / token) as usize).max(1)
            }
            // A little, to learn from.
            _ => FIRST_TOKENS,
        }
    }

    /// Whether answers come faster than the system shares its cores out.
    pub fn is_quick(&self) -> bool {
        self.answers.is_some_and(|seconds| seconds < SLICE)
    }

    /// Learns from a step.
    pub fn note(&mut self, load: StepLoad, took: Duration) {
        let seconds = took.as_secs_f64();
        match (load.answers, load.prompt_tokens) {
            (0, _) => {}
            (_, 0) => mean(&mut self.answers, seconds, [WEIGHT; 2]),
            (_, tokens) => {
                if let Some(answers) = self.answers {
                    // What is lost in noise has a price too, or the next step would read a whole prompt.
                    let added = (seconds - answers).max(0.01 * answers);
                    mean(&mut self.prompt_token, added / tokens as f64, [WEIGHT, FALL]);
                }
            }
        }
    }
}

/// Moves a mean by one of two weights: where it rises, and where it falls.
fn mean(value: &mut Option<f64>, new: f64, [rise, fall]: [f64; 2]) {
    let moved = |old: f64| {
        let change = new.clamp(old / MOST_CHANGE, old * MOST_CHANGE) - old;
        old + change * if change > 0.0 { rise } else { fall }
    };
    *value = Some(value.map_or(new, moved));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: StepLoad = StepLoad { answers: 2, prompt_tokens: 0 };

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A machine on which answers take 10 ms, and every prompt token adds one.
    fn read(pace: &mut Pace, steps: usize) {
        for _ in 0..steps {
            let prompt_tokens = pace.prompt_room();
            pace.note(StepLoad { answers: 2, prompt_tokens }, ms(10 + prompt_tokens as u64));
        }
    }

    #[test]
    fn prompts_take_what_answers_can_spare() {
        let mut pace = Pace::new();
        pace.note(ANSWERS, ms(10));
        read(&mut pace, 40);
        assert!((9..=11).contains(&pace.prompt_room()), "{pace:?}");
        // A token that costs more than an answer is still read.
        for _ in 0..40 {
            pace.note(StepLoad { answers: 2, prompt_tokens: 1 }, ms(1010));
        }
        assert_eq!(pace.prompt_room(), 1);
    }

    #[test]
    fn a_step_that_was_held_up_is_forgotten() {
        let mut pace = Pace::new();
        pace.note(ANSWERS, ms(10));
        read(&mut pace, 40);
        let before = pace.prompt_room();
        pace.note(StepLoad { answers: 2, prompt_tokens: before }, ms(2000));
        assert!((before / 2..before).contains(&pace.prompt_room()), "{pace:?}");
        read(&mut pace, 30);
        assert!((before - 1..=before).contains(&pace.prompt_room()), "{pace:?}");
        pace.note(ANSWERS, ms(2000));
        assert!(pace.prompt_room() <= before + before / 4, "{pace:?}");
        assert!(!pace.is_quick());
    }

    #[test]
    fn a_token_too_many_is_tried_seldom() {
        let mut pace = Pace::new();
        pace.note(ANSWERS, ms(10));
        // One token is cheap, two take another program.
        let took = |tokens: usize| ms([10, 14, 25][tokens.min(2)]);
        let mut long = 0;
        for _ in 0..100 {
            let prompt_tokens = pace.prompt_room();
            long += usize::from(took(prompt_tokens) > ms(20));
            pace.note(StepLoad { answers: 2, prompt_tokens }, took(prompt_tokens));
        }
        assert!((1..=25).contains(&long), "{long} of 100 steps were too long: {pace:?}");
    }

    #[test]
    fn steps_that_read_alone_tell_nothing_of_those_beside_answers() {
        let mut pace = Pace::new();
        pace.note(StepLoad { answers: 0, prompt_tokens: 512 }, ms(1));
        pace.note(ANSWERS, ms(1));
        assert_eq!(pace.prompt_room(), FIRST_TOKENS);
        assert!(pace.is_quick());
    }
}
