//! What the host and the kernels both read, defined once: a struct is written in Rust, and its WGSL text is made from it.

use mambo_kernel::{Operand, Place, RowBase};

/// A type that kernels know, too: so many words in the uniform buffer.
pub(crate) trait Field {
    /// Its name in WGSL.
    const WGSL: &'static str;
    /// Appends its words.
    fn push(&self, words: &mut Vec<u32>);
}

impl Field for u32 {
    const WGSL: &'static str = "u32";
    fn push(&self, words: &mut Vec<u32>) {
        words.push(*self);
    }
}

impl Field for f32 {
    const WGSL: &'static str = "f32";
    fn push(&self, words: &mut Vec<u32>) {
        words.push(self.to_bits());
    }
}

/// Rows of an operand in the arena's buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct View {
    /// Word of the first element; unused where the operand is the step's token ids or wanted rows.
    pub data: u32,
    /// Words from one row to the next; 0 for an operand that is not there.
    pub stride: u32,
    /// Elements per row.
    pub cols: u32,
    /// Rows per token; with the highest bit set, per wanted row.
    pub rows: u32,
}

impl Field for View {
    const WGSL: &'static str = "View";
    fn push(&self, words: &mut Vec<u32>) {
        // Uniform structs stand on multiples of four words: views come first.
        assert!(words.len().is_multiple_of(4), "views come first in parameters");
        words.extend([self.data, self.stride, self.cols, self.rows]);
    }
}

/// Rows of a shard of a weight: `Weights` of kernels/weights.wgsl.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WeightRows {
    pub first: u32,
    pub stride: u32,
    pub blocks: u32,
    pub scales: u32,
    pub supers: u32,
    pub factor: u32,
    /// Rows of an expert, and experts.
    pub outputs: u32,
    pub experts: u32,
}

impl Field for WeightRows {
    const WGSL: &'static str = "Weights";
    fn push(&self, words: &mut Vec<u32>) {
        assert!(words.len().is_multiple_of(4), "structs come first in parameters");
        words.extend([self.first, self.stride, self.blocks, self.scales]);
        words.extend([self.supers, self.factor, self.outputs, self.experts]);
    }
}

/// A number of words or elements that fits.
pub(crate) fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("a count of the step or of a weight's shard fits 32 bits")
}

impl View {
    /// The rows of an operand; `hidden_at` is the word where hidden rows start.
    pub fn of(operand: &Operand, hidden_at: u32) -> View {
        assert!(operand.stride_bytes.is_multiple_of(4), "rows are whole words");
        View {
            data: match operand.place {
                Place::Arena(offset) => narrow(offset / 4),
                Place::Hidden(offset) => hidden_at + narrow(offset / 4),
                Place::TokenIds | Place::Wanted => 0,
            },
            stride: narrow(operand.stride_bytes / 4),
            cols: narrow(operand.cols),
            rows: narrow(operand.rows.times) | u32::from(operand.rows.base == RowBase::Wanted) << 31,
        }
    }
}

/// Parameters of a kernel.
pub(crate) trait Params {
    /// The definition in WGSL of `Params`.
    fn wgsl() -> String;
    /// The words that are uploaded.
    fn words(&self) -> Vec<u32>;
}

/// Defines parameter structs in Rust, and the text that defines them in WGSL.
macro_rules! params {
    ($($(#[$doc:meta])* $vis:vis struct $name:ident { $($(#[$field_doc:meta])* $field_vis:vis $field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            $vis struct $name {
                $($(#[$field_doc])* $field_vis $field: $type,)*
            }

            impl $crate::params::Params for $name {
                fn wgsl() -> String {
                    let mut text = String::from("struct Params {\n");
                    $(
                        let wgsl = <$type as $crate::params::Field>::WGSL;
                        text.push_str(&format!("    {}: {wgsl},\n", stringify!($field)));
                    )*
                    text + "}\n"
                }

                fn words(&self) -> Vec<u32> {
                    let mut words = Vec::new();
                    $($crate::params::Field::push(&self.$field, &mut words);)*
                    words
                }
            }
        )*
    };
}
pub(crate) use params;

#[cfg(test)]
mod tests {
    use super::*;

    params! {
        struct Mixed { rows: View, count: u32, scale: f32 }
    }

    #[test]
    fn text_names_every_field_and_words_follow_it() {
        assert_eq!(Mixed::wgsl(), "struct Params {\n    rows: View,\n    count: u32,\n    scale: f32,\n}\n");
        let rows = View { data: 1, stride: 2, cols: 3, rows: 4 };
        assert_eq!(Mixed { rows, count: 5, scale: 1.0 }.words(), [1, 2, 3, 4, 5, 0x3f80_0000]);
    }
}
