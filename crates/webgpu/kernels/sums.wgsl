// Sums over 256 threads in one fixed order: sixteen sums of every sixteenth thread's, then those.
const SUM_THREADS: u32 = 256u;
var<workgroup> sums: array<f32, 256>;
var<workgroup> sixteen_sums: array<f32, 16>;

// The sum of every thread's value, the same in all; called by all threads.
fn sum_of(value: f32, thread: u32) -> f32 {
    workgroupBarrier();
    sums[thread] = value;
    workgroupBarrier();
    if (thread < 16u) {
        var sum = sums[thread];
        for (var i = 16u; i < SUM_THREADS; i += 16u) {
            sum = sum + sums[thread + i];
        }
        sixteen_sums[thread] = sum;
    }
    workgroupBarrier();
    var total = sixteen_sums[0];
    for (var i = 1u; i < 16u; i++) {
        total = total + sixteen_sums[i];
    }
    return total;
}
