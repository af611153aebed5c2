//! Instruction sets: what this machine has, and one function per set to run a kernel in.
#![allow(unsafe_code)]

use std::fmt;

use crate::simd::{self, Simd};

/// Code that is compiled once per instruction set. Implementations are `#[inline(always)]` down to the last loop.
pub(crate) trait Vectorized {
    /// The result.
    type Output;
    /// A type of the module that the compiled code belongs to. The compiler generates code for modules in parallel, so
    /// generic code that is instantiated for many types names one of those types here.
    type Home: InstructionSets;
    /// Runs it.
    fn run<S: Simd>(self) -> Self::Output;
}

/// An instruction set the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust; runs on every machine.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// The same with tile registers for bf16 (AMX). They use 16 bits of each activation and sum in their own order, so
    /// products with bf16 weights differ from those of the other sets in the last bits.
    Amx,
    /// WebAssembly's 128-bit vectors. Whether there are any is decided where the module is compiled.
    Simd128,
}

impl Isa {
    /// The best instruction set of this machine.
    pub fn detect() -> Isa {
        *Isa::available().last().expect("there is always one")
    }

    /// The only set of a module that was compiled for vectors: a second one would double its size.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    pub fn available() -> Vec<Isa> {
        vec![Isa::Simd128]
    }

    /// All instruction sets this machine can run, best last.
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    pub fn available() -> Vec<Isa> {
        #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut, reason = "only x86-64 has others"))]
        let mut sets = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx2() {
                sets.push(Isa::Avx2);
                if has_avx512() {
                    sets.push(Isa::Avx512);
                    if has_tiles() {
                        sets.push(Isa::Amx);
                    }
                }
            }
        }
        sets
    }

    /// The name used in kernel rows and flags.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::Simd128 => "simd128",
        }
    }

    /// Whether unpacking codes is free because it runs in parallel with the products: AMD's vector units have spare
    /// pipes for it, Intel's share the same two.
    pub(crate) fn unpacks_for_free(self) -> bool {
        self == Isa::Avx512 && amd_family().is_some()
    }

    /// Runs code compiled for this set, which must be one of [`Isa::available`]; the backend checks that when it is
    /// created.
    pub(crate) fn call<V: Vectorized>(self, what: V) -> V::Output {
        match self {
            #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
            Isa::Portable => V::Home::portable(what),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => what.run::<simd::Simd128>(),
            // SAFETY: a backend is only created for a set the CPU has.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { V::Home::avx2(what) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => unsafe { V::Home::avx512(what) },
            _ => unreachable!("not available on this architecture"),
        }
    }
}

/// What is prefetched of weights that are streamed past rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// Nothing: the hardware's prefetchers follow the stream by themselves, and are disturbed by others.
    Nothing,
    /// What lies so many bytes ahead, into L1.
    Near(usize),
    /// What lies so many bytes ahead, into L2, which can have more outstanding misses.
    Far(usize),
}

/// Bytes that a core reads during the memory latency.
const FETCH_BYTES: usize = 8192;

impl Fetch {
    /// For weights streamed past one row, or past several. With one row AMD's cores up to Zen 4 follow the stream by
    /// themselves; Zen 5 reads faster than its prefetchers ask for, and waiting for L2 shows.
    pub fn on_this_machine(is_one_row: bool) -> Fetch {
        match amd_family() {
            Some(family) if family >= ZEN_5 => Fetch::Near(FETCH_BYTES),
            Some(_) if is_one_row => Fetch::Nothing,
            _ => Fetch::Far(FETCH_BYTES),
        }
    }
}

/// The family of Zen 5.
const ZEN_5: u32 = 0x1a;

/// The family of a processor made by AMD.
#[cfg(target_arch = "x86_64")]
fn amd_family() -> Option<u32> {
    use std::arch::x86_64::__cpuid;
    let family = __cpuid(1).eax;
    let family = (family >> 8 & 0xf) + (family >> 20 & 0xff);
    (__cpuid(0).ebx == u32::from_le_bytes(*b"Auth")).then_some(family)
}

#[cfg(not(target_arch = "x86_64"))]
fn amd_family() -> Option<u32> {
    None
}

/// Defines the detection of lists of features and the functions that run code with exactly those.
macro_rules! instruction_sets {
    ($($has:ident, $call:ident, $simd:ident, [$($feature:tt)*];)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            fn $has() -> bool {
                $(std::arch::is_x86_feature_detected!($feature))&&*
            }
        )*

        /// One function per instruction set. They are methods of every type because the compiler keeps a method with
        /// the module of its type, see [`Vectorized::Home`].
        pub(crate) trait InstructionSets {
            #[cfg_attr(target_feature = "simd128", allow(dead_code, reason = "vectors take its place"))]
            // Inlined, a part that `Simd::call` keeps apart would be copied to every use.
            #[inline(never)]
            fn portable<V: Vectorized>(what: V) -> V::Output {
                what.run::<simd::Portable>()
            }

            $(
                /// # Safety
                /// The CPU has the set.
                #[cfg(target_arch = "x86_64")]
                $(#[target_feature(enable = $feature)])*
                unsafe fn $call<V: Vectorized>(what: V) -> V::Output {
                    what.run::<simd::$simd>()
                }
            )*
        }
    };
}

instruction_sets! {
    has_avx2, avx2, Avx2, ["avx2" "fma" "f16c" "bmi1" "bmi2" "popcnt" "lzcnt"];
    has_avx512, avx512, Avx512, [
        "avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vnni"
        "avx2" "fma" "f16c" "bmi1" "bmi2" "popcnt" "lzcnt"
    ];
}

impl<T: ?Sized> InstructionSets for T {}

/// Whether the CPU has tile registers for bf16 and the system lets this process use them. Their state is large, so a
/// process has to request permission.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const TILES_AND_BF16: u32 = 1 << 24 | 1 << 22;
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    let has_them = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_BF16 == TILES_AND_BF16;
    // SAFETY: requests a permission, which may be repeated; no memory is involved.
    has_them && unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn has_tiles() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
