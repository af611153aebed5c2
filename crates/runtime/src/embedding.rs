//! Embeddings as programs give them: vectors of length one.

/// The first numbers of a row, divided by their length; a row of zeros stays as it is.
pub fn unit_vector(mut row: Vec<f32>, dimensions: usize) -> Vec<f32> {
    row.truncate(dimensions);
    let length = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        row.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::unit_vector;

    #[test]
    fn what_is_cut_has_length_one_again() {
        assert_eq!(unit_vector(vec![3.0, -4.0, 12.0], 2), [0.6, -0.8]);
        assert_eq!(unit_vector(vec![0.0; 3], 3), [0.0; 3]);
    }
}
