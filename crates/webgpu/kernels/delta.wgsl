// What delta_scan.wgsl and delta_scan_store.wgsl share: inputs of a row.
const INNER: u32 = HEADS * HEAD_DIM;
const GROUP_STATE: u32 = GROUPS * STATE;

// `1 / sqrt((|x|² + eps)·factor)` of a group's vector that starts at a column.
fn unit_scale(row: u32, column: u32, factor: f32) -> f32 {
    var sum = 0.0;
    for (var n = 0u; n < STATE; n++) {
        let x = load(p.qkv, row, column + n);
        sum = fma(x, x, sum);
    }
    return 1.0 / sqrt((sum + 1e-6) * factor);
}

fn decay_of(row: u32, head: u32) -> f32 {
    return vector_at(p.a + head) * softplus(load(p.decay, row, head) + vector_at(p.dt_bias + head));
}
