//! Recurrent slots: which are free, the position each has reached, and how far it may roll back.

use mambo_kernel::Rollback;

/// A held slot and the position its sequence has reached.
#[derive(Debug)]
pub struct Slot {
    index: u32,
    position: usize,
    /// The furthest position ever run; what running it overwrote is lost even after a rollback.
    furthest: usize,
    /// Where the slot was restored from a snapshot, which holds nothing from before.
    restored: usize,
}

impl Slot {
    /// Index in the backend's slot memory.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Tokens the slot has seen.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Notes that `tokens` more were run.
    pub fn advance(&mut self, tokens: usize) {
        self.position += tokens;
        self.furthest = self.furthest.max(self.position);
    }

    /// Notes that a snapshot taken at `position` was restored.
    pub fn restored_at(&mut self, position: usize) {
        (self.position, self.furthest, self.restored) = (position, position, position);
    }

    /// Whether the slot still holds what moving the cursor back needs.
    pub fn can_roll_back(&self, tokens: usize, depth: Rollback) -> bool {
        let Some(position) = self.position.checked_sub(tokens) else { return false };
        let is_held = position >= self.restored && self.furthest - position <= depth.tokens();
        tokens == 0 || is_held
    }

    /// Moves the cursor back, where that is possible.
    pub fn rollback(&mut self, tokens: usize) {
        self.position -= tokens;
    }
}

/// Free slots.
#[derive(Debug)]
pub struct StateSlots {
    free: Vec<u32>,
}

impl StateSlots {
    /// `total` slots, all free.
    pub fn new(total: usize) -> Self {
        StateSlots { free: (0..total as u32).rev().collect() }
    }

    /// Free slots.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a slot at position 0, where its memory counts as zero whatever it holds.
    pub fn take(&mut self) -> Option<Slot> {
        self.free.pop().map(|index| Slot { index, position: 0, furthest: 0, restored: 0 })
    }

    /// Returns a slot.
    pub fn give_back(&mut self, slot: Slot) {
        debug_assert!(!self.free.contains(&slot.index), "a slot was given back twice");
        self.free.push(slot.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mambo_kernel::SSM_CHUNK;

    #[test]
    fn rollback_reaches_one_chunk_where_the_slot_keeps_two() {
        let mut slot = StateSlots::new(1).take().unwrap();
        slot.advance(SSM_CHUNK + 5);
        assert!(!slot.can_roll_back(1, Rollback::None));
        assert!(!slot.can_roll_back(SSM_CHUNK + 1, Rollback::OneChunk));
        assert!(slot.can_roll_back(SSM_CHUNK, Rollback::OneChunk));
        slot.rollback(SSM_CHUNK);
        assert_eq!(slot.position(), 5);
        assert!(!slot.can_roll_back(6, Rollback::OneChunk), "never before the first token");
        assert!(
            !slot.can_roll_back(1, Rollback::OneChunk),
            "a second rollback counts from the furthest token"
        );
        slot.advance(20);
        assert!(!slot.can_roll_back(21, Rollback::OneChunk) && slot.can_roll_back(20, Rollback::OneChunk));
    }

    #[test]
    fn nothing_is_rolled_back_to_before_a_snapshot() {
        let mut slot = StateSlots::new(1).take().unwrap();
        slot.restored_at(40);
        slot.advance(5);
        assert!(!slot.can_roll_back(6, Rollback::OneChunk) && slot.can_roll_back(5, Rollback::OneChunk));
    }
}
