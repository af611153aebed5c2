//! Steps that feed each other without the host: tokens that an earlier step chose, and rows of the step before.

use mambo_kernel::case::Case;
use mambo_kernel::{
    Backend, BackendError, CHOICES_KEPT, CHOSEN, CacheLayout, ChooseInputs, Fetch, HiddenRows, NO_TOKEN, Op,
    Segment, StepInputs, StepResults, Ticket, Wait,
};

use super::Report;
use super::judge::difference;
use super::sizes::{plain_case, resized};
use super::trial::{Compiled, Setup, compile};

/// Rows of a step.
const ROWS: usize = 5;
/// Which row of the step before each row reads.
const FROM: [u32; ROWS] = [3, 0, 4, 4, 1];

/// The programs that feed each other.
struct Programs<'a> {
    backend: &'a mut dyn Backend,
    choose: Compiled,
    choices: Case,
    embed: Compiled,
    relu2: Compiled,
}

/// Checks both ways, where the backend has rows for the ops.
pub(super) fn check(backend: &mut dyn Backend, report: &mut Report) {
    let name = backend.name().to_owned();
    let checked = check_feeding(backend);
    if let Err(problem) = checked {
        report.failures.push(format!("{name}: steps that feed each other: {problem}"));
    }
}

fn check_feeding(backend: &mut dyn Backend) -> Result<(), String> {
    let choose = plain_case(backend, Op::Choose);
    let embed = plain_case(backend, Op::Embed);
    let relu2 = plain_case(backend, Op::Relu2);
    let (Some(choose), Some(embed), Some(mut relu2)) = (choose, embed, relu2) else { return Ok(()) };
    let rows = embed.0.weights[0].shape[0];
    let cols = embed.0.weights[0].shape[1];
    let mut choices = resized(&choose.0, &[1; ROWS]);
    // As many tokens as the table has rows, and a row from which none can be chosen.
    choices.inputs[0].ty.cols = rows;
    let mut count = 0;
    let mut logits = |s: usize| match s {
        2 => vec![f32::NAN; rows],
        _ => (0..rows)
            .map(|_| {
                count += 1;
                (count * 37 % 101) as f32
            })
            .collect(),
    };
    choices.inputs[0].sequences = (0..ROWS).map(&mut logits).collect();
    choices.choose = Default::default();
    choices.choose.rows = vec![vec![Default::default()]; ROWS];
    relu2.0 = Case::new("relu2", Op::Relu2, &[1; ROWS], 0.0).input(cols, || 0.0);
    let embed_case = resized(&embed.0, &[1; ROWS]);
    let error = |error: BackendError| error.to_string();
    backend.clear().map_err(error)?;
    let mut set_up = |case: &Case, kernel, phase, dense| {
        compile(backend, &Setup { case, kernel, phase, rounded: None, dense }).map_err(error)
    };
    let choose = set_up(&choices, choose.1, choose.2, false)?;
    let embed = set_up(&embed_case, embed.1, embed.2, false)?;
    let relu2 = set_up(&relu2.0, relu2.1, relu2.2, true)?;
    backend.create_caches(&CacheLayout::default()).map_err(error)?;
    let mut programs = Programs { backend, choose, choices, embed, relu2 };
    programs.check_chosen()?;
    programs.check_previous()
}

fn segments() -> [Segment; ROWS] {
    std::array::from_fn(|row| Segment {
        slot: row as u32,
        first_row: row as u32,
        rows: 1,
        position: 0,
        first_page: 0,
    })
}

impl Programs<'_> {
    /// Tokens that a step chose, fed to the next one and to the last one that may take them.
    fn check_chosen(&mut self) -> Result<(), String> {
        for steps_between in 0..CHOICES_KEPT {
            let (ticket, tokens) = self.choose()?;
            for _ in 0..steps_between {
                self.embed(&[0; ROWS], None)?;
            }
            let chosen = FROM.map(|row| CHOSEN | row);
            let got = self.embed(&chosen, Some(ticket))?;
            // Where nothing could be chosen the step runs on token 0.
            let known = FROM.map(|row| match tokens[row as usize] {
                NO_TOKEN => 0,
                token => token,
            });
            let want = self.embed(&known, None)?;
            if let Some(at) = difference(&got, &want) {
                return Err(format!(
                    "value {at} differs where tokens {known:?} are taken over, {steps_between} steps later"
                ));
            }
        }
        self.check_mixed()
    }

    /// Some tokens taken over and some given.
    fn check_mixed(&mut self) -> Result<(), String> {
        let (ticket, tokens) = self.choose()?;
        let mixed = self.embed(&[CHOSEN | 3, 1, CHOSEN, 2, CHOSEN | 4], Some(ticket))?;
        let want = self.embed(&[tokens[3], 1, tokens[0], 2, tokens[4]], None)?;
        match difference(&mixed, &want) {
            None => Ok(()),
            Some(at) => Err(format!("value {at} differs where some tokens are taken over and some given")),
        }
    }

    /// Rows of the step before, read by the next one.
    fn check_previous(&mut self) -> Result<(), String> {
        let rows = self.embed(&[0, 1, 2, 3, 4], None)?;
        let cols = rows.len() / ROWS;
        let got = self.relu2(HiddenRows::Previous { output: 0, rows: &FROM })?;
        let given: Vec<f32> =
            FROM.iter().flat_map(|row| rows[*row as usize * cols..][..cols].to_vec()).collect();
        let want = self.relu2(HiddenRows::Given(&given))?;
        match difference(&got, &want) {
            None => Ok(()),
            Some(at) => Err(format!("value {at} differs where hidden rows are those of the step before")),
        }
    }

    fn choose(&mut self) -> Result<(Ticket, Vec<u32>), String> {
        let stride = self.choose.inputs[0].stride_bytes / 4;
        let mut hidden = vec![f32::NAN; self.choose.hidden_bytes / 4];
        let mut rows = Vec::new();
        for (row, logits) in self.choices.inputs[0].sequences.iter().enumerate() {
            hidden[row * stride..][..logits.len()].copy_from_slice(logits);
            rows.extend_from_slice(&self.choices.choose.rows[row]);
        }
        let step = StepInputs {
            token_ids: &[0; ROWS],
            segments: &segments(),
            pages: &[0; ROWS],
            wanted: &[0, 1, 2, 3, 4],
            hidden: HiddenRows::Given(&hidden),
            choose: ChooseInputs { rows: &rows, ..Default::default() },
            ..StepInputs::default()
        };
        let (ticket, results) = self.run(self.choose.id, &step)?;
        if results.tokens.len() != ROWS || results.tokens[2] != NO_TOKEN {
            return Err(format!("chose {:?}, where row 2 has no numbers", results.tokens));
        }
        Ok((ticket, results.tokens))
    }

    fn embed(&mut self, token_ids: &[u32], chosen_by: Option<Ticket>) -> Result<Vec<f32>, String> {
        let step = StepInputs {
            token_ids,
            chosen_by,
            segments: &segments(),
            pages: &[0; ROWS],
            wanted: &[0, 1, 2, 3, 4],
            fetch: &[Fetch { output: 0, rows: 0..ROWS as u32 }],
            ..StepInputs::default()
        };
        Ok(self.run(self.embed.id, &step)?.1.rows.remove(0))
    }

    fn relu2(&mut self, hidden: HiddenRows) -> Result<Vec<f32>, String> {
        let step = StepInputs {
            token_ids: &[0; ROWS],
            segments: &segments(),
            pages: &[0; ROWS],
            wanted: &[0, 1, 2, 3, 4],
            hidden,
            fetch: &[Fetch { output: 0, rows: 0..ROWS as u32 }],
            ..StepInputs::default()
        };
        Ok(self.run(self.relu2.id, &step)?.1.rows.remove(0))
    }

    fn run(
        &mut self,
        id: mambo_kernel::ProgramId,
        step: &StepInputs,
    ) -> Result<(Ticket, StepResults), String> {
        let mut results = StepResults::default();
        let run = |backend: &mut dyn Backend, results: &mut StepResults| {
            let ticket = backend.submit(id, step)?;
            while !backend.collect(ticket, Wait::Block, results)? {}
            Ok(ticket)
        };
        let ticket = run(self.backend, &mut results).map_err(|error: BackendError| error.to_string())?;
        Ok((ticket, results))
    }
}
