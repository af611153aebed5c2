//! The reference backend keeps its own contracts, whatever the cut.

use mambo_kernel::ReferenceBackend;
use mambo_testkit::contract::check_all;

#[test]
fn the_reference_keeps_its_contracts() {
    check_all(&mut ReferenceBackend::new()).assert_ok();
}
