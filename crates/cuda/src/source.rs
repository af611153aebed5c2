//! Kernel sources, and the specialisations that are compiled of them.

use std::fmt;

use crate::arch::Arch;

/// A file of kernels with the structs that the host passes to them.
pub(crate) struct Source {
    /// The file's stem, which is the op's.
    pub stem: &'static str,
    pub text: &'static str,
    /// C texts of the structs that the file reads, in order.
    pub structs: &'static [fn() -> String],
}

/// Headers that every kernel may include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("attention.cuh", include_str!("../kernels/attention.cuh")),
    ("attention_f16.cuh", include_str!("../kernels/attention_f16.cuh")),
    ("attention_tile.cuh", include_str!("../kernels/attention_tile.cuh")),
    ("attention_tile_hopper.cuh", include_str!("../kernels/attention_tile_hopper.cuh")),
    ("chain.cuh", include_str!("../kernels/chain.cuh")),
    ("common.cuh", include_str!("../kernels/common.cuh")),
    ("experts.cuh", include_str!("../kernels/experts.cuh")),
    ("experts_ring.cuh", include_str!("../kernels/experts_ring.cuh")),
    ("experts_round.cuh", include_str!("../kernels/experts_round.cuh")),
    ("fragments.cuh", include_str!("../kernels/fragments.cuh")),
    ("matmul.cuh", include_str!("../kernels/matmul.cuh")),
    ("matmul_tile.cuh", include_str!("../kernels/matmul_tile.cuh")),
    ("mma.cuh", include_str!("../kernels/mma.cuh")),
    ("moe_choice.cuh", include_str!("../kernels/moe_choice.cuh")),
    ("norm.cuh", include_str!("../kernels/norm.cuh")),
    ("ptx.cuh", include_str!("../kernels/ptx.cuh")),
    ("ring.cuh", include_str!("../kernels/ring.cuh")),
    ("round.cuh", include_str!("../kernels/round.cuh")),
    ("ssm.cuh", include_str!("../kernels/ssm.cuh")),
    ("ssm_chunk.cuh", include_str!("../kernels/ssm_chunk.cuh")),
    ("ssm_chunk_products.cuh", include_str!("../kernels/ssm_chunk_products.cuh")),
    ("ssm_chunk_rows.cuh", include_str!("../kernels/ssm_chunk_rows.cuh")),
    ("ssm_row.cuh", include_str!("../kernels/ssm_row.cuh")),
    ("stages.cuh", include_str!("../kernels/stages.cuh")),
    ("stored.cuh", include_str!("../kernels/stored.cuh")),
    ("types.cuh", include_str!("../kernels/types.cuh")),
    ("wgmma.cuh", include_str!("../kernels/wgmma.cuh")),
];

impl Source {
    /// What is given to the compiler; `step.cuh` stands for the generated definitions.
    pub fn full_text(&self) -> String {
        let structs: String = self.structs.iter().map(|text| text()).collect();
        format!("#include \"step.cuh\"\n{structs}#line 1 \"{}.cu\"\n{}", self.stem, self.text)
    }
}

/// Instructions that a kernel is pointless without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expects {
    /// Nothing special.
    Nothing,
    /// `mma.sync`.
    Mma,
    /// `wgmma`, where the architecture has it.
    Wgmma,
}

/// A kernel: an entry of a file that was compiled with some definitions.
#[derive(Clone)]
pub struct Specialisation {
    pub(crate) source: &'static Source,
    pub(crate) entry: &'static str,
    pub(crate) defines: Vec<(&'static str, String)>,
    pub(crate) expects: Expects,
    pub(crate) runs_on: fn(Arch) -> bool,
}

impl Specialisation {
    /// An entry of a file, for every architecture.
    pub(crate) fn new(source: &'static Source, entry: &'static str) -> Specialisation {
        Specialisation { source, entry, defines: Vec::new(), expects: Expects::Nothing, runs_on: |_| true }
    }

    /// The same with `#define name value`. All entries of a file with equal definitions are compiled together.
    pub(crate) fn define(mut self, name: &'static str, value: impl fmt::Display) -> Specialisation {
        self.defines.push((name, value.to_string()));
        self
    }

    /// The same, which must have these instructions.
    pub(crate) fn expecting(self, expects: Expects) -> Specialisation {
        Specialisation { expects, ..self }
    }

    /// The same, for some architectures only.
    pub(crate) fn only_on(self, runs_on: fn(Arch) -> bool) -> Specialisation {
        Specialisation { runs_on, ..self }
    }

    /// The module that the kernel is part of.
    pub fn module_name(&self) -> String {
        let defines = self.defines.iter().map(|(name, value)| format!(" {name}={value}"));
        format!("{}{}", self.source.stem, defines.collect::<String>())
    }

    /// The kernel's name.
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// Instructions it must have.
    pub fn expects(&self) -> Expects {
        self.expects
    }

    /// Whether it is compiled for an architecture.
    pub fn runs_on(&self, arch: Arch) -> bool {
        (self.runs_on)(arch)
    }
}

impl fmt::Display for Specialisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.entry, self.module_name())
    }
}
