// The factor of a root-mean-square norm, in the same steps wherever one is computed.
fn rms_factor(squares: f32, size: u32, eps: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(size) + eps);
}
