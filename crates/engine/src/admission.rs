//! From the queue to a slot: which waiting requests start, what they restore from the prefix cache, and whom they wait
//! for because it reads the same beginning.

use crate::engine::{Engine, Event};
use crate::error::EngineError;
use crate::history::History;
use crate::prefix::{Marks, Reuse, WORTH_WAITING, common_prefix};
use crate::sequence::{FinishReason, Request, Sequence, SequenceId};

/// What became of a waiting request.
enum Admission {
    /// It started or failed, and waits no more.
    Left,
    /// It waits for what a running sequence is about to leave.
    Held,
    /// No memory is free for it, nor for those behind it.
    Full,
}

impl Engine {
    /// Puts a request into the queue, before those of lower priority.
    pub(crate) fn enqueue(&mut self, id: SequenceId, request: Request) {
        let before = self.waiting.iter().rposition(|(_, other)| other.priority >= request.priority);
        self.waiting.insert(before.map_or(0, |index| index + 1), (id, request));
    }

    /// Gives waiting requests slots and pages while both are available.
    pub(crate) fn admit(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() {
            match self.admit_one(index) {
                Admission::Left => {}
                Admission::Held => index += 1,
                Admission::Full => return,
            }
        }
    }

    fn admit_one(&mut self, index: usize) -> Admission {
        let (_, request) = &self.waiting[index];
        let (mut resume, mut reuse) = (request.resume.clone(), Reuse::default());
        let cache = self.prefix.as_ref().filter(|_| request.uses_cache && resume.is_none());
        if let Some(cache) = cache {
            (resume, reuse) = cache.find(&request.prompt);
            if let Some((running, position)) = self.about_to_read(request, reuse.tokens) {
                self.running[running].marks.add(position);
                return Admission::Held;
            }
        }
        let limit = request.limit(self.config.context_tokens);
        // Pages for the whole answer are reserved now: a running sequence is never evicted.
        let needed = self.needed_pages(&request.prompt, limit, resume.as_deref());
        if self.slots.free() > 0 {
            self.make_room(&needed);
        }
        let (free_slots, free_pages) = (self.slots.free(), self.pages.fewest_free());
        if free_slots == 0 || !self.has_free(&needed) {
            if !(self.running.is_empty() && self.ended.is_empty()) {
                return Admission::Full;
            }
            // No running sequence will free any: the request would wait forever.
            let (id, _) = self.waiting.remove(index).expect("it was looked at");
            let reason = FinishReason::Failed(EngineError::Busy { free_slots, free_pages }.into());
            self.events.push(Event::Finished { id, reason });
            return Admission::Left;
        }
        let (id, request) = self.waiting.remove(index).expect("it was looked at");
        self.start(id, Request { resume, ..request }, reuse, limit);
        Admission::Left
    }

    /// A running sequence that will read so much more of a prompt than is kept that it is worth waiting for, and the
    /// position to wait for.
    fn about_to_read(&self, request: &Request, kept: usize) -> Option<(usize, usize)> {
        let prompt = &request.prompt[..];
        let shared = |sequence: &Sequence| {
            let shared = common_prefix(&sequence.request.prompt, prompt).min(prompt.len() - 1);
            // Once a state will be left there, any distance is worth the wait; a sequence that is beyond leaves none.
            let is_worth = shared >= kept + WORTH_WAITING || (shared > kept && sequence.marks.has(shared));
            Some(shared).filter(|shared| is_worth && *shared > sequence.slot.position())
        };
        // One of lower priority may not come to read at all.
        let found = self.running.iter().enumerate();
        let found = found
            .filter(|(_, s)| s.request.priority >= request.priority)
            .filter_map(|(index, s)| Some((index, shared(s)?)));
        found.max_by_key(|(_, position)| *position)
    }

    /// Whether so many pages of every group are free.
    fn has_free(&self, pages: &[usize]) -> bool {
        self.pages.groups.iter().zip(pages).all(|(group, needed)| group.free() >= *needed)
    }

    /// Drops kept prefixes until so many pages of every group are free, or none is left.
    fn make_room(&mut self, pages: &[usize]) {
        while !self.has_free(pages) && self.drop_prefix(&[]) {}
    }

    fn start(&mut self, id: SequenceId, request: Request, mut reuse: Reuse, limit: usize) {
        let slot = self.slots.take().expect("slots were counted");
        let history = History::of(&request);
        let mut sequence = Sequence {
            id,
            request,
            slot,
            pages: self.pages.lists(limit),
            generated: Vec::new(),
            history,
            marks: Marks::default(),
            reused: 0,
            limit,
            steps_in_flight: 0,
            unseen: 0,
        };
        let resumed = match sequence.request.resume.take() {
            Some(snapshot) => self.resume(&mut sequence, &snapshot),
            None => Ok(()),
        };
        if let Err(error) = resumed {
            self.slots.give_back(sequence.slot);
            // Its pages are freed before a loss replaces the pool they came from.
            drop(sequence.pages);
            self.note_loss(&error);
            self.events.push(Event::Finished { id, reason: FinishReason::Failed(error.into()) });
            return;
        }
        let has_pages = self.pages.reserve(&mut sequence.pages);
        assert!(has_pages, "pages were counted");
        reuse.tokens = sequence.reused;
        if let Some(cache) = self.prefix.as_mut().filter(|_| sequence.request.uses_cache) {
            let Request { prompt, turn_ends, .. } = &sequence.request;
            cache.note(prompt, reuse);
            sequence.marks = Marks::of(prompt.len(), turn_ends, reuse, cache.every);
        }
        self.events.push(Event::Started { id, reuse });
        self.running.push(sequence);
    }

    /// Keeps the memory of a sequence that ends, for prompts that go on from its answer.
    pub(crate) fn keep_end(&mut self, index: usize) {
        let sequence = &self.running[index];
        let position = sequence.slot.position();
        // A step that ran ahead has changed the slot.
        if sequence.steps_in_flight > 0 || position <= sequence.reused || !sequence.request.uses_cache {
            return;
        }
        self.keep(index, position);
    }

    /// Keeps the memory of a sequence at the position it has reached. The sequence goes on if that fails: it has lost
    /// nothing.
    pub(crate) fn keep(&mut self, index: usize, position: usize) {
        let sequence = &self.running[index];
        let Some(cache) = &self.prefix else { return };
        let tokens: Option<Vec<u32>> = (0..position).map(|at| sequence.token(at)).collect();
        if tokens.is_none_or(|tokens| cache.holds(&tokens)) {
            return;
        }
        match self.capture(index) {
            Ok(snapshot) => self.keep_prefix(snapshot.into()),
            Err(error) => self.note_loss(&error),
        }
    }
}
