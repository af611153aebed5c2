//! The inputs of one step: plain arrays over a ragged batch. Its results: [`StepResults`].

use std::fmt;
use std::ops::Range;

use crate::backend::Ticket;

/// Consecutive rows of a step that belong to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Recurrent slot of the sequence.
    pub slot: u32,
    /// First row of the segment in the step.
    pub first_row: u32,
    /// Rows of the segment; at least one.
    pub rows: u32,
    /// Position in the sequence of the first row.
    pub position: u32,
    /// Where the sequence's page list starts in the array of every group, see [`StepInputs::pages`].
    pub first_page: u32,
}

impl Segment {
    /// The segment's rows in the step.
    pub fn row_range(&self) -> Range<usize> {
        self.first_row as usize..(self.first_row + self.rows) as usize
    }
}

/// A bit in a token id: the token is the one that a wanted row of an earlier step chose, and the other bits are that
/// row's index among the wanted rows. The host need not have seen the token.
pub const CHOSEN: u32 = 1 << 31;

/// Choices of so many steps submitted before can be taken over by [`CHOSEN`].
pub const CHOICES_KEPT: usize = 4;

/// What `choose` gives where no token can be chosen: every logit is NaN, or none is allowed. A step that is fed
/// such a choice by [`CHOSEN`] runs on token 0, and the caller discards the row.
pub const NO_TOKEN: u32 = u32::MAX;

/// An entry of a page list that no kernel reads: all positions of the page are before the window.
pub const NO_PAGE: u32 = u32::MAX;

/// Hidden rows for programs that read them (the MTP head), one per row of the step.
#[derive(Clone, Copy, Debug, Default)]
pub enum HiddenRows<'a> {
    /// The program reads none.
    #[default]
    None,
    /// From the caller.
    Given(&'a [f32]),
    /// Rows of an output of the step submitted before, which need not have been collected.
    Previous {
        /// Index of the output in its program.
        output: usize,
        /// Row of that output for each row of this step.
        rows: &'a [u32],
    },
}

/// How `choose` picks the token of one wanted row.
#[derive(Clone, Debug, PartialEq)]
pub struct ChooseRow {
    /// 0 takes the most likely token; otherwise logits are divided by this.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Seed of the random choice.
    pub seed: u64,
    /// Position in its sequence that the token will take: with the seed it fixes the random numbers.
    pub position: u32,
    /// The row's part of [`ChooseInputs::adjustments`], sorted by token, each token once.
    pub adjustments: Range<u32>,
    /// Number of the row's mask in [`ChooseInputs::masks`]; none allows every token.
    pub mask: Option<u32>,
}

impl Default for ChooseRow {
    fn default() -> Self {
        ChooseRow {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            position: 0,
            adjustments: 0..0,
            mask: None,
        }
    }
}

/// A change to one token's logit before the choice: `l + bias`, then divided by `factor` where positive and
/// multiplied with it where not, then minus `penalty`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// The token; below the vocabulary.
    pub token: u32,
    /// Added first; minus infinity bans the token.
    pub bias: f32,
    /// The repetition penalty; 1 does nothing.
    pub factor: f32,
    /// Presence and frequency penalties.
    pub penalty: f32,
}

/// What `choose` reads besides logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChooseInputs<'a> {
    /// One per wanted row.
    pub rows: &'a [ChooseRow],
    /// The adjustments of all rows.
    pub adjustments: &'a [Adjustment],
    /// The masks that rows name, to be asked for when they are needed.
    pub masks: Masks<'a>,
}

/// Masks of allowed tokens that are made when they are asked for: a grammar takes its time, which need not be added to
/// the step's. Only choosing reads them, so that a device is given the rest of the step before they are asked for, and
/// threads that compute a step themselves share the work.
pub trait MaskSource: Sync {
    /// Sets the bits of the tokens that mask `number` allows. The mask comes cleared and has [`mask_words`] words; bit
    /// `t % 32` of word `t / 32` is token `t`. It is called while the step is being submitted, at most once for every
    /// row that names the mask, in any order and on any thread.
    fn fill(&self, number: u32, mask: &mut [u32]);
}

/// The source of a step's masks; none where no row names one.
#[derive(Clone, Copy, Default)]
pub struct Masks<'a>(Option<&'a dyn MaskSource>);

impl<'a> Masks<'a> {
    /// Masks that come from here.
    pub fn of(source: &'a dyn MaskSource) -> Self {
        Masks(Some(source))
    }

    /// Makes mask `number` in this memory.
    pub fn fill(&self, number: u32, mask: &mut [u32]) {
        mask.fill(0);
        self.0.expect("a step whose rows name masks has a source of them").fill(number, mask);
    }
}

impl fmt::Debug for Masks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Masks" } else { "no masks" })
    }
}

/// Words of a mask over so many tokens.
pub fn mask_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(32)
}

/// Rows of an output that the caller wants to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the output in its program.
    pub output: usize,
    /// Its rows.
    pub rows: Range<u32>,
}

/// Everything that changes from step to step.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepInputs<'a> {
    /// One token per row, or the choice of a row of step `chosen_by` (see [`CHOSEN`]).
    pub token_ids: &'a [u32],
    /// The step that choices are taken over from, one of the last [`CHOICES_KEPT`]; it need not have been collected.
    pub chosen_by: Option<Ticket>,
    /// The rows by sequence, in row order, covering every row once; no slot appears twice.
    pub segments: &'a [Segment],
    /// KV page numbers: for every group of [`crate::CacheLayout::kv_groups`] an array of the same length, one after the
    /// other (see [`StepInputs::group_pages`]). In each of them a segment's list starts at its `first_page`, and entry `p`
    /// is the page in the group's pool that holds the sequence's positions `p·page_tokens ..`. A list covers the segment's
    /// last position. In a group with a window, entries before [`crate::KvGroup::first_page`] of the segment's position
    /// are not read and may be [`NO_PAGE`]. A page that this step writes is in one list only; pages before may be shared.
    pub pages: &'a [u32],
    /// Rows whose logits are wanted, ascending.
    pub wanted: &'a [u32],
    /// Hidden rows, from the caller or of the step submitted just before.
    pub hidden: HiddenRows<'a>,
    /// How tokens are chosen, for programs that choose.
    pub choose: ChooseInputs<'a>,
    /// What comes back besides the chosen tokens.
    pub fetch: &'a [Fetch],
}

impl<'a> StepInputs<'a> {
    /// The page lists of one of so many groups.
    pub fn group_pages(&self, group: usize, groups: usize) -> &'a [u32] {
        let len = self.pages.len() / groups;
        &self.pages[group * len..(group + 1) * len]
    }

    /// The token ids with those filled in that step `chosen_by` chose; empty where none has to be.
    pub fn resolve_tokens(&self, chosen: &[u32], into: &mut Vec<u32>) {
        into.clear();
        if self.token_ids.iter().all(|id| id & CHOSEN == 0) {
            return;
        }
        into.extend(self.token_ids.iter().map(|&id| match id & CHOSEN {
            0 => id,
            _ => Some(chosen[(id & !CHOSEN) as usize]).filter(|token| *token != NO_TOKEN).unwrap_or(0),
        }));
    }
}

/// The results of a step; buffers are reused from step to step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResults {
    /// The token of every wanted row, or [`NO_TOKEN`]; empty where the program does not choose.
    pub tokens: Vec<u32>,
    /// For every [`Fetch`] its rows, one after the other without padding. Private rows come as the values they stand
    /// for, indices as whole numbers.
    pub rows: Vec<Vec<f32>>,
}
