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

    /// Itself, and older members of its generation whose machine code it runs too.
    pub(crate) fn loads_code_of(self) -> impl Iterator<Item = Arch> {
        let older = move |other: &Arch| self.major == 8 && other.major == 8 && other.minor < self.minor;
        std::iter::once(self).chain(Arch::TESTED.into_iter().rev().filter(older))
    }

    /// The architecture of a name such as `sm_90a`, `90a` or `90`.
    pub fn from_name(name: &str) -> Option<Arch> {
        let digits = name.trim_start_matches("sm_").trim_end_matches('a');
        let number: u32 = digits.parse().ok()?;
        let arch = Arch { major: number / 10, minor: number % 10 };
        (Arch::OLDEST..=Arch { major: 99, minor: 9 }).contains(&arch).then_some(arch)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for arch in Arch::TESTED {
            assert_eq!(Arch::from_name(&arch.flag()), Some(arch));
        }
        assert_eq!(["sm_75", "cpu", "", "90x"].map(Arch::from_name), [None; 4]);
    }

    #[test]
    fn only_its_generation_shares_machine_code() {
        let loads = |name| Arch::from_name(name).map(|arch| arch.loads_code_of().collect::<Vec<_>>());
        let named =
            |names: &[&str]| Some(names.iter().filter_map(|name| Arch::from_name(name)).collect::<Vec<_>>());
        assert_eq!(loads("sm_89"), named(&["sm_89", "sm_86", "sm_80"]));
        assert_eq!(loads("sm_90a"), named(&["sm_90a"]));
        assert_eq!(loads("sm_120a"), named(&["sm_120a"]));
    }
}
