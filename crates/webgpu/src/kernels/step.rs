//! The kernels at both ends of a step, which belong to no op.

use mambo_kernel::check::StepNeeds;
use mambo_kernel::{Call, Program};

use super::binding::{Launch, rows_grid};
use super::pointwise::{VALUES, source};
use crate::params::{Params, View, narrow, params};
use crate::source::{Source, Specialisation};

params! {
    struct StepBeginParams { unused: u32 }
    struct StepEndParams { choices: View }
}

source!(BEGIN, "step_begin", StepBeginParams);
source!(END, "step_end", StepEndParams);

/// Everything here.
pub(crate) fn specialisations() -> Vec<Specialisation> {
    vec![Specialisation::new(&BEGIN), Specialisation::new(&END)]
}

/// The launch before a step's calls, where rows of the step before are taken over.
pub(crate) fn begin(needs: &StepNeeds, program: &Program) -> Launch {
    // Rows stand one after the other, so the bytes of all say how wide one is.
    let words = needs.most_hidden_bytes() / 4 / program.max_tokens.max(1);
    let x = narrow(words.div_ceil(VALUES));
    let kernel = Specialisation::new(&BEGIN);
    Launch::new(kernel, &StepBeginParams { unused: 0 }, move |facts| rows_grid(x, facts.tokens))
}

/// The launch after the calls of a step that chooses.
pub(crate) fn end(chooser: &Call) -> Launch {
    let choices = View::of(&chooser.outputs[0], 0);
    Launch::new(Specialisation::new(&END), &StepEndParams { choices }, |facts| {
        [narrow(facts.wanted.div_ceil(VALUES)), 1, 1]
    })
}
