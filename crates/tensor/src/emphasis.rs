//! Weights for [`crate::encode_row_weighted`] that favour large values.
//!
//! An option for quantisers: large weights tend to carry more of a product, and some quantisers give them
//! more say even without knowing the activations. The encoders themselves count all values alike.

/// How a value's magnitude enters its weight.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Emphasis {
    /// x²: small values hardly count.
    Squares,
    /// √(mean x² + x²), the mean taken over the row: large values count more, small ones still do.
    Soft,
}

/// One weight per value: its emphasis times its importance.
///
/// # Panics
/// When there is not one importance per value.
pub fn emphasis_weights(values: &[f32], importance: Option<&[f32]>, emphasis: Emphasis) -> Vec<f32> {
    let mean = values.iter().map(|v| v * v).sum::<f32>() / values.len().max(1) as f32;
    let weigh = |v: &f32| match emphasis {
        Emphasis::Squares => v * v,
        Emphasis::Soft => (mean + v * v).sqrt(),
    };
    match importance {
        None => values.iter().map(weigh).collect(),
        Some(importance) => {
            assert_eq!(importance.len(), values.len(), "one importance per value");
            values.iter().zip(importance).map(|(v, i)| weigh(v) * i).collect()
        }
    }
}
