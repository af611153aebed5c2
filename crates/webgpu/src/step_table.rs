//! What changes from step to step, as kernels see it: one array of words with a header, the offsets of its parts, in
//! front. Words are written here and nowhere else.

use mambo_kernel::{CHOSEN, ChooseRow, NO_PAGE, NO_TOKEN, PAGE_TOKENS, SSM_CHUNK, StepInputs, mask_words};

/// Value of a choice's mask where every token is allowed.
const NO_MASK: u32 = u32::MAX;

/// Rows along a grid's y; the rest stand along z.
pub(crate) const GRID_ROWS: u32 = 1 << 15;

/// Words of the header, by name: counts, offsets of arrays in the table, words of the arena's buffer, and a zero that no
/// compiler knows.
const HEADER: [&str; 22] = [
    "ROWS",
    "WANTED_ROWS",
    "SEGMENT_COUNT",
    "MASK_WORDS",
    "GROUP_PAGES",
    "TOKEN_IDS",
    "WANTED",
    "ROW_SEGMENT",
    "SEGMENTS",
    "PAGES",
    "CHOOSE",
    "ADJUSTMENTS",
    "MASKS",
    "CHOSEN_BEFORE",
    "CHOSEN_HERE",
    "HIDDEN_FROM",
    "HIDDEN_STRIDE",
    "HIDDEN_COLS",
    "HIDDEN_ROWS",
    "HIDDEN",
    "END",
    "ZERO",
];

/// The definitions that every kernel reads: the header and the contract's constants.
pub(crate) fn wgsl() -> String {
    let constants = [
        ("CHOSEN", CHOSEN),
        ("NO_TOKEN", NO_TOKEN),
        ("NO_MASK", NO_MASK),
        ("NO_PAGE", NO_PAGE),
        ("PAGE_TOKENS", PAGE_TOKENS as u32),
        ("SSM_CHUNK", SSM_CHUNK as u32),
        ("GRID_ROWS", GRID_ROWS),
    ];
    let constants = constants.map(|(name, value)| format!("const {name}: u32 = {value}u;\n")).concat();
    let header = HEADER.iter().enumerate().map(|(at, name)| format!("const STEP_{name}: u32 = {at}u;\n"));
    header.collect::<String>() + &constants
}

/// Rows of the step before that become hidden rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PreviousRows {
    /// Word of the first in the arena's buffer.
    pub first: u32,
    /// Words from one to the next.
    pub stride: u32,
    /// Words of each.
    pub cols: u32,
}

/// What the table holds beside the arrays of the step; all places are words of the arena's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    /// What the step chose whose choices token ids may name.
    pub chosen_before: u32,
    /// Where this step's choices are kept.
    pub chosen_here: u32,
    pub previous: PreviousRows,
    /// Where hidden rows are.
    pub hidden: u32,
    /// Tokens that are chosen from; 0 where none are.
    pub vocabulary: usize,
    /// Groups of attention layers.
    pub kv_groups: usize,
}

/// A table that is being put together; the memory is kept from step to step.
#[derive(Default)]
pub(crate) struct Table {
    words: Vec<u32>,
    masks_at: usize,
    mask_numbers: Vec<u32>,
    mask_words: usize,
}

impl Table {
    /// Writes a step, all but its masks.
    pub fn fill(&mut self, step: &StepInputs, previous_rows: &[u32], around: &Surroundings) {
        self.words.clear();
        self.words.resize(HEADER.len(), 0);
        self.mask_words = mask_words(around.vocabulary);
        self.mask_numbers.clear();
        self.mask_numbers.extend(step.choose.rows.iter().filter_map(|row| row.mask));
        self.mask_numbers.sort_unstable();
        self.mask_numbers.dedup();
        let arrays = [
            ("TOKEN_IDS", self.push(step.token_ids.iter().copied())),
            ("WANTED", self.push(step.wanted.iter().copied())),
            (
                "ROW_SEGMENT",
                self.push(
                    (0..)
                        .zip(step.segments)
                        .flat_map(|(index, segment)| std::iter::repeat_n(index, segment.rows as usize)),
                ),
            ),
            (
                "SEGMENTS",
                self.push(
                    step.segments
                        .iter()
                        .flat_map(|s| [s.slot, s.first_row, s.rows, s.position, s.first_page]),
                ),
            ),
            ("PAGES", self.push(step.pages.iter().copied())),
            ("HIDDEN_ROWS", self.push(previous_rows.iter().copied())),
            (
                "ADJUSTMENTS",
                self.push(step.choose.adjustments.iter().flat_map(|change| {
                    [change.token, change.bias.to_bits(), change.factor.to_bits(), change.penalty.to_bits()]
                })),
            ),
        ];
        let choose: Vec<u32> = step.choose.rows.iter().flat_map(|row| self.choose_entry(row)).collect();
        let choose = self.push(choose.into_iter());
        self.masks_at = self.words.len();
        self.words.resize(self.masks_at + self.mask_numbers.len() * self.mask_words, 0);
        let counts = [
            ("ROWS", step.token_ids.len()),
            ("WANTED_ROWS", step.wanted.len()),
            ("SEGMENT_COUNT", step.segments.len()),
            ("MASK_WORDS", self.mask_words),
            ("GROUP_PAGES", step.pages.len() / around.kv_groups.max(1)),
            ("CHOOSE", choose),
            ("MASKS", self.masks_at),
            ("CHOSEN_BEFORE", around.chosen_before as usize),
            ("CHOSEN_HERE", around.chosen_here as usize),
            ("HIDDEN_FROM", around.previous.first as usize),
            ("HIDDEN_STRIDE", around.previous.stride as usize),
            ("HIDDEN_COLS", around.previous.cols as usize),
            ("HIDDEN", around.hidden as usize),
            // The position after the last one of any segment.
            ("END", step.segments.iter().map(|s| (s.position + s.rows) as usize).max().unwrap_or(0)),
        ];
        for (name, value) in arrays.into_iter().chain(counts) {
            let at = HEADER.iter().position(|known| *known == name).expect("a word of the header");
            self.words[at] = crate::params::narrow(value);
        }
    }

    fn choose_entry(&self, row: &ChooseRow) -> [u32; 10] {
        let mask = row.mask.map_or(NO_MASK, |number| {
            self.mask_numbers.binary_search(&number).expect("it was numbered") as u32
        });
        [
            row.temperature.to_bits(),
            row.top_k,
            row.top_p.to_bits(),
            row.min_p.to_bits(),
            row.seed as u32,
            (row.seed >> 32) as u32,
            row.position,
            row.adjustments.start,
            row.adjustments.end - row.adjustments.start,
            mask,
        ]
    }

    /// Appends an array and returns where it starts.
    fn push(&mut self, values: impl Iterator<Item = u32>) -> usize {
        let at = self.words.len();
        self.words.extend(values);
        at
    }

    /// All words, with zeros for masks that were not made yet.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Where the masks are; they end the table.
    pub fn masks_at(&self) -> usize {
        self.masks_at
    }

    /// Makes the masks.
    pub fn fill_masks(&mut self, step: &StepInputs) {
        let masks = self.words[self.masks_at..].chunks_exact_mut(self.mask_words.max(1));
        for (number, mask) in self.mask_numbers.iter().zip(masks) {
            step.choose.masks.fill(*number, mask);
        }
    }
}
