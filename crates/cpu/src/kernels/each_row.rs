//! An unrolled loop over a few rows, for kernels whose sums must stay in registers.

/// Runs a body for every row below a constant count of at most eight. The loop is unrolled, so that accumulators are
/// registers and not an array in memory.
macro_rules! each_row {
    ($rows:ident, $r:ident, $body:block) => {
        each_row!(@ $rows, $r, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $rows:ident, $r:ident, $body:block, $($i:literal)*) => {
        $(if $rows > $i {
            let $r: usize = $i;
            $body
        })*
    };
}
pub(in crate::kernels) use each_row;
