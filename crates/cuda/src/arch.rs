//! Architectures that kernels are compiled for.

use std::fmt;

/// A compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    /// Generation.
    pub major: u32,
    /// Member of it.
    pub minor: u32,
}

impl Arch {
    /// The oldest that has every instruction the general kernels use.
    pub const OLDEST: Arch = Arch { major: 8, minor: 0 };

    /// One of each kind that is compiled for when kernels are tested or shipped.
    pub const TESTED: [Arch; 6] = [
        Arch { major: 8, minor: 0 },
        Arch { major: 8, minor: 6 },
        Arch { major: 8, minor: 9 },
        Arch { major: 9, minor: 0 },
        Arch { major: 10, minor: 0 },
        Arch { major: 12, minor: 0 },
    ];

    /// Whether it has warpgroup products with bulk copies (`wgmma`), which no other generation has.
    pub fn is_hopper(self) -> bool {
        self.major == 9
    }

    /// Whether kernels can start before the one they depend on has ended.
    pub fn has_dependent_launch(self) -> bool {
        self.major >= 9
    }

    /// The name that the compiler knows: with the instructions of this generation alone where there are any.
    pub fn flag(self) -> String {
        let suffix = if self.major >= 9 { "a" } else { "" };
        format!("sm_{}{}{suffix}", self.major, self.minor)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.flag())
    }
}
