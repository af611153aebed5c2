//! What changes from step to step, as kernels see it: one struct at a fixed address in the device's memory, and arrays
//! behind it. A captured graph reads it anew whenever it is replayed.

use crate::params::{CStruct, Ptr, View, c_struct};

/// Value of [`ChooseEntry::mask`] where every token is allowed.
pub(crate) const NO_MASK: u32 = u32::MAX;

c_struct! {
    /// Consecutive rows of one sequence; see `mambo_kernel::Segment`.
    pub(crate) struct SegmentEntry {
        pub slot: u32,
        pub first_row: u32,
        pub rows: u32,
        /// Position in the sequence of the first row.
        pub position: u32,
        /// Where the sequence's list starts in each group's part of `pages`.
        pub first_page: u32,
    }

    /// How the token of a wanted row is chosen; see `mambo_kernel::ChooseRow`.
    pub(crate) struct ChooseEntry {
        pub temperature: f32,
        pub top_k: u32,
        pub top_p: f32,
        pub min_p: f32,
        pub seed: u64,
        pub position: u32,
        pub first_adjustment: u32,
        pub adjustments: u32,
        /// Number of the row's mask in `masks`, or NO_MASK.
        pub mask: u32,
    }

    /// A change to a token's logit; see `mambo_kernel::Adjustment`.
    pub(crate) struct AdjustmentEntry {
        pub token: u32,
        pub bias: f32,
        pub factor: f32,
        pub penalty: f32,
    }

    /// The step.
    pub(crate) struct StepTable {
        /// Tokens.
        pub rows: u32,
        pub wanted_rows: u32,
        pub segment_count: u32,
        /// Words of a mask.
        pub mask_words: u32,
        /// One per row; choices of earlier steps are filled in before any other kernel runs.
        pub token_ids: Ptr<u32>,
        /// Rows whose logits are wanted, ascending.
        pub wanted: Ptr<u32>,
        /// Index of every row's segment.
        pub row_segment: Ptr<u32>,
        pub segments: Ptr<SegmentEntry>,
        /// Page lists, one array after the other for the groups of attention layers; see `mambo_kernel::StepInputs::pages`.
        pub pages: Ptr<u32>,
        /// One per wanted row, where the program chooses.
        pub choose: Ptr<ChooseEntry>,
        /// The adjustments of all rows.
        pub adjustments: Ptr<AdjustmentEntry>,
        /// Masks of allowed tokens, one after the other.
        pub masks: Ptr<u32>,
        /// What the step chose whose choices token ids may name.
        pub chosen_before: Ptr<u32>,
        /// Where this step's choices are kept for later ones.
        pub chosen_here: Ptr<u32>,
        /// Where the host reads them.
        pub chosen_host: Ptr<u32>,
        /// The output of the step before whose rows become this one's hidden rows; null where the host gives them.
        pub hidden_from: Ptr<u8>,
        /// Bytes from one of its rows to the next.
        pub hidden_stride: u64,
        /// Which of its rows, one for each row of this step.
        pub hidden_rows: Ptr<u32>,
        /// Where they go, one after the other.
        pub hidden: Ptr<f32>,
        /// Values of each.
        pub hidden_cols: u32,
        /// Entries of `pages` from one group's array to the next.
        pub group_pages: u32,
    }
}

/// The definitions that every kernel reads: views, the step, and the contract's constants.
pub(crate) fn c_text() -> String {
    use mambo_kernel::{CHOSEN, NO_TOKEN, PAGE_TOKENS, SSM_CHUNK};
    let constants = [
        ("CHOSEN", CHOSEN as usize),
        ("NO_TOKEN", NO_TOKEN as usize),
        ("NO_MASK", NO_MASK as usize),
        ("PAGE_TOKENS", PAGE_TOKENS),
        ("SSM_CHUNK", SSM_CHUNK),
    ];
    let constants = constants.map(|(name, value)| format!("#define {name} {value}u\n"));
    let structs = [View::c_text, SegmentEntry::c_text, ChooseEntry::c_text, AdjustmentEntry::c_text];
    let structs: String = structs.iter().map(|text| text()).collect();
    format!("#pragma once\n{}{structs}{}", constants.concat(), StepTable::c_text())
}
