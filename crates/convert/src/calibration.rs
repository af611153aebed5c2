//! Runs a model over a text to learn which inputs of its weights matter. Knows nothing of types or files.

use std::collections::HashMap;
use std::ops::ControlFlow;

use mambo_engine::{Engine, ScoreOptions};
use mambo_graph::{Observed, ObservedExperts};
use mambo_kernel::Backend;
use mambo_runtime::quality::Windows;
use mambo_runtime::{Graphs, LoadEvent, LoadOptions, Model};

use crate::{ConvertError, Importance};

/// A loaded model whose products show their inputs. Only the trunk's do: the MTP head reads what the trunk has not
/// said yet, and its errors cost a draft, never an answer.
pub struct Calibration {
    model_name: String,
    engine: Engine,
    observed: Vec<Observed>,
}

impl Calibration {
    /// Loads the model with its inputs observed.
    pub fn load(
        model: &Model,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
        on_event: &mut dyn FnMut(LoadEvent),
    ) -> Result<Calibration, ConvertError> {
        let (trunk, observed) = model.graphs(false)?.trunk.observed();
        let engine = model.load_graphs(&Graphs { trunk, mtp: None }, backend, options, on_event)?;
        Ok(Calibration { model_name: model.name().to_owned(), engine, observed })
    }

    /// The importance of every input on a text; `progress` gets the number of windows
    /// done before each, and may stop it.
    pub fn measure(
        &mut self,
        windows: &Windows,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Importance, ConvertError> {
        let mut squares: Vec<Squares> = self.observed.iter().map(Squares::new).collect();
        for (done, window) in windows.iter().enumerate() {
            if progress(done).is_break() {
                return Err(ConvertError::Stopped);
            }
            self.observe(window, &mut squares)?;
        }
        // Weights of a weighted error that are no numbers would make any code as good as any other.
        let is_bad = |squares: &Squares| squares.sums.iter().any(|sum| !sum.is_finite());
        if let Some(bad) = squares.iter().position(is_bad) {
            let (file, weight) = (self.model_name.clone(), self.observed[bad].weight.clone());
            return Err(ConvertError::BadInputs { file, weight });
        }
        let named =
            self.observed.iter().zip(squares).map(|(place, squares)| (place.weight.clone(), squares.means()));
        Ok(Importance::new(named.collect::<HashMap<_, _>>()))
    }

    /// Adds the inputs of one window.
    fn observe(&mut self, window: &[u32], squares: &mut [Squares]) -> Result<(), ConvertError> {
        // The rows of every observed weight, with the experts' numbers behind those that have experts.
        let mut outputs: Vec<&str> = Vec::new();
        for place in &self.observed {
            outputs.push(&place.rows);
            outputs.extend(place.experts.as_ref().map(|experts| experts.ids.as_str()));
        }
        let options = ScoreOptions { chunk: usize::MAX, companions: 0, outputs: &outputs };
        let observed = &self.observed;
        self.engine.score(window, options, &mut |scored| {
            let mut fetched = scored.outputs.iter();
            let mut next = || fetched.next().expect("every output that was asked for");
            for (place, squares) in observed.iter().zip(&mut *squares) {
                let rows = next();
                match &place.experts {
                    None => squares.add_rows(rows),
                    Some(experts) => squares.add_expert_rows(rows, next(), place.rows_per_token, experts),
                }
            }
        })?;
        Ok(())
    }
}

/// Sums of squares of a weight's inputs.
struct Squares {
    cols: usize,
    /// One set of columns for each expert; one in all for other weights.
    sums: Vec<f64>,
    /// Rows seen by each.
    rows: Vec<u64>,
}

impl Squares {
    fn new(place: &Observed) -> Squares {
        let sets = place.experts.as_ref().map_or(1, |e| e.count);
        Squares { cols: place.cols, sums: vec![0.0; sets * place.cols], rows: vec![0; sets] }
    }

    fn add(&mut self, set: usize, row: &[f32]) {
        let sums = &mut self.sums[set * self.cols..(set + 1) * self.cols];
        sums.iter_mut().zip(row).for_each(|(sum, &v)| *sum += f64::from(v) * f64::from(v));
        self.rows[set] += 1;
    }

    fn add_rows(&mut self, rows: &[f32]) {
        rows.chunks_exact(self.cols).for_each(|row| self.add(0, row));
    }

    /// A token has one row that all its experts read, or one for each of them.
    fn add_expert_rows(
        &mut self,
        rows: &[f32],
        ids: &[f32],
        rows_per_token: usize,
        experts: &ObservedExperts,
    ) {
        for (choice, &expert) in ids.iter().enumerate() {
            let (token, nth) = (choice / experts.top_k, choice % experts.top_k);
            let row = token * rows_per_token + nth.min(rows_per_token - 1);
            self.add(expert as usize, &rows[row * self.cols..(row + 1) * self.cols]);
        }
    }

    /// Mean squares. An expert that the text never reached gets the mean of the others, and no input counts for
    /// nothing: another text may use it.
    fn means(&self) -> Vec<f32> {
        const LEAST_SHARE: f64 = 0.01;
        let all: Vec<f64> = (0..self.cols)
            .map(|col| self.sums.iter().skip(col).step_by(self.cols).sum::<f64>())
            .map(|sum| sum / self.rows.iter().sum::<u64>().max(1) as f64)
            .collect();
        let mut means = Vec::with_capacity(self.sums.len());
        for (sums, &rows) in self.sums.chunks_exact(self.cols).zip(&self.rows) {
            let mean = |col: usize| if rows > 0 { sums[col] / rows as f64 } else { all[col] };
            let least = (0..self.cols).map(mean).sum::<f64>() / self.cols as f64 * LEAST_SHARE;
            means.extend((0..self.cols).map(|col| (mean(col) + least) as f32));
        }
        means
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expert_counts_its_own_rows() {
        let experts = ObservedExperts { ids: "ids".to_owned(), top_k: 2, count: 3 };
        let place = Observed {
            weight: "w".to_owned(),
            cols: 2,
            rows: "rows".to_owned(),
            rows_per_token: 1,
            experts: Some(experts.clone()),
        };
        let mut shared = Squares::new(&place);
        shared.add_expert_rows(&[1.0, 0.0, 3.0, 2.0], &[0.0, 2.0, 2.0, 0.0], 1, &experts);
        assert_eq!(shared.sums, [10.0, 4.0, 0.0, 0.0, 10.0, 4.0]);
        assert_eq!(shared.rows, [2, 0, 2]);
        let means = shared.means();
        assert!((means[0] - 5.035).abs() < 1e-6 && (means[1] - 2.035).abs() < 1e-6, "{means:?}");
        assert_eq!(means[2..4], means[0..2], "an expert without rows gets the mean of the others");
        let mut own = Squares::new(&Observed { rows_per_token: 2, ..place });
        own.add_expert_rows(&[1.0, 1.0, 2.0, 2.0], &[1.0, 2.0], 2, &experts);
        assert_eq!(own.sums, [0.0, 0.0, 1.0, 1.0, 4.0, 4.0]);
    }
}
