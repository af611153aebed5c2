// Sums over 256 threads in one fixed order.
const SUM_THREADS: u32 = 256u;
var<workgroup> sums: array<f32, 256>;

// The sum of every thread's value, the same in all; called by all threads.
fn sum_of(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    sums[thread] = value;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half >>= 1u) {
        if (thread < half) {
            sums[thread] = sums[thread] + sums[thread + half];
        }
        workgroupBarrier();
    }
    return sums[0];
}
