// A root-mean-square norm's sum of squares and factor, in the same steps wherever one is computed: each of 128 threads sums
// every 128th four of values, and then come sixteen sums of every sixteenth thread's (sums.wgsl).
const SQUARE_THREADS: u32 = 128u;

fn add_squares(sum: f32, x: vec4<f32>) -> f32 {
    return fma(x.w, x.w, fma(x.z, x.z, fma(x.y, x.y, fma(x.x, x.x, sum))));
}

fn rms_factor(squares: f32, size: u32, eps: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(size) + eps);
}
