//! Instruction sets: what this machine has, and one function per set to run a kernel in.
#![allow(unsafe_code)]

use std::fmt;

use crate::kernels::{Cx, Scratch, Work};
use crate::simd;

/// An instruction set the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust; every machine.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
}

impl Isa {
    /// The best set of this machine.
    pub fn detect() -> Isa {
        *Isa::available().last().expect("the portable set is always there")
    }

    /// Every set this machine can run, best last.
    pub fn available() -> Vec<Isa> {
        let mut sets = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") && has!("f16c") {
                sets.push(Isa::Avx2);
                if has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512vl")
                    && has!("avx512dq")
                    && has!("avx512vnni")
                {
                    sets.push(Isa::Avx512);
                }
            }
        }
        sets
    }

    /// The name in kernel rows and flags.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Runs a kernel in this set. The set must be one of [`Isa::available`], which the backend checks
    /// when it is made.
    pub(crate) fn run<W: Work>(self, work: &W, cx: &Cx, scratch: &mut Scratch) {
        match self {
            Isa::Portable => work.work::<simd::Portable>(cx, scratch),
            // SAFETY: a backend is only made for a set the CPU has.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { run_avx2(work, cx, scratch) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { run_avx512(work, cx, scratch) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("not available on this architecture"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt")]
fn run_avx2<W: Work>(work: &W, cx: &Cx, scratch: &mut Scratch) {
    work.work::<simd::Avx2>(cx, scratch)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(
    enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,bmi1,bmi2,popcnt,lzcnt"
)]
fn run_avx512<W: Work>(work: &W, cx: &Cx, scratch: &mut Scratch) {
    work.work::<simd::Avx512>(cx, scratch)
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
