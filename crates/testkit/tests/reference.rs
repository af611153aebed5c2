//! The reference backend keeps its own contracts, whatever the cut.

use mambo_kernel::ReferenceBackend;
use mambo_testkit::contract::check_all;

#[test]
fn reference_is_cut_invariant() {
    check_all(&|| Box::new(ReferenceBackend::new())).assert_ok();
}
