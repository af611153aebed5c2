//! Every kernel row of every instruction set of this machine, on every hard case of its op.

use mambo_cpu::{CpuBackend, CpuOptions, Isa};
use mambo_testkit::contract::check_all;

fn check(isa: Isa, threads: usize) {
    if !Isa::available().contains(&isa) {
        return;
    }
    let mut backend =
        CpuBackend::new(CpuOptions { threads, isa: Some(isa), every_thread: true, ..CpuOptions::default() })
            .unwrap();
    check_all(&mut backend).assert_ok();
}

#[test]
fn portable() {
    check(Isa::Portable, 1);
}

#[test]
fn avx2() {
    // Four threads share a long context of many heads in several passes.
    check(Isa::Avx2, 4);
}

#[test]
fn avx512() {
    check(Isa::Avx512, 3);
}

#[test]
fn amx() {
    check(Isa::Amx, 4);
}
