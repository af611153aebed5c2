//! What became of a request, as one line of the log. The line is written when the last who works on it lets go: for a
//! stream that is after its last event. Prompts and answers are logged only where the server is told to.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use mambo_runtime::Piece;

use crate::generation::{End, Usage};

/// What a client that left before its answer is logged with, as web servers do.
const CLIENT_LEFT: u16 = 499;

/// Characters of a user's name that are logged.
const LONGEST_USER: usize = 64;

/// A request from its arrival to its end.
#[derive(Debug)]
pub(crate) struct Record {
    /// What client and log call it.
    pub id: String,
    method: String,
    path: String,
    arrived: Instant,
    /// Whether only those who look for everything want to see it.
    is_routine: bool,
    so_far: Mutex<SoFar>,
}

#[derive(Debug, Default)]
struct SoFar {
    status: Option<u16>,
    prompt_tokens: usize,
    cached_tokens: usize,
    answer_tokens: usize,
    first_token: Option<Duration>,
    finish: Option<&'static str>,
    user: Option<String>,
}

impl Record {
    pub fn new(id: String, method: &str, path: &str, is_routine: bool) -> Record {
        let (method, path, arrived) = (method.to_owned(), path.to_owned(), Instant::now());
        Record { id, method, path, arrived, is_routine, so_far: Mutex::default() }
    }

    fn so_far(&self) -> MutexGuard<'_, SoFar> {
        self.so_far.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notes the status that the answer begins with.
    pub fn note_status(&self, status: u16) {
        self.so_far().status = Some(status);
    }

    /// Notes who the client says asks; a name too long for a line is cut.
    pub fn note_user(&self, user: Option<&str>) {
        self.so_far().user = user.map(|user| user.chars().take(LONGEST_USER).collect());
    }

    /// Notes one answer; of several to one prompt only the first brings the prompt's tokens.
    pub fn note_answer(&self, usage: &Usage, end: Option<&'static str>, is_first: bool) {
        let mut so_far = self.so_far();
        if is_first {
            so_far.prompt_tokens += usage.prompt_tokens;
            so_far.cached_tokens += usage.reuse.tokens;
        }
        so_far.answer_tokens += usage.completion_tokens;
        let first = so_far.first_token.into_iter().chain(usage.time_to_first_token).min();
        so_far.first_token = first;
        so_far.finish = Some(end.unwrap_or("cancelled"));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let total_ms = self.arrived.elapsed().as_millis() as u64;
        let Record { id, method, path, is_routine, so_far, .. } = self;
        let so_far = so_far.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let status = so_far.status.unwrap_or(CLIENT_LEFT);
        let is_quiet = *is_routine && status < 400;
        match so_far.finish {
            Some(finish) => tracing::info!(
                %id, %method, %path, status, prompt_tokens = so_far.prompt_tokens,
                cached_tokens = so_far.cached_tokens, answer_tokens = so_far.answer_tokens,
                first_token_ms = so_far.first_token.map(|first| first.as_millis() as u64), total_ms, finish,
                user = so_far.user, "request"
            ),
            None if is_quiet => tracing::debug!(%id, %method, %path, status, total_ms, "request"),
            None => tracing::info!(%id, %method, %path, status, total_ms, "request"),
        }
    }
}

/// The part of one answer in the record of its request.
pub(crate) struct AnswerRecord {
    record: Arc<Record>,
    is_first: bool,
    end: Option<&'static str>,
    /// What the model said, if that is logged.
    said: Option<String>,
}

impl AnswerRecord {
    pub fn new(record: Arc<Record>, is_first: bool, logs_text: bool) -> AnswerRecord {
        AnswerRecord { record, is_first, end: None, said: logs_text.then(String::new) }
    }

    pub fn note_end(&mut self, end: &End) {
        self.end = Some(end.name());
    }

    pub fn note_piece(&mut self, piece: &Piece) {
        let Some(said) = &mut self.said else { return };
        match piece {
            Piece::Reasoning(text) | Piece::Content(text) => said.push_str(text),
            Piece::ToolCall { name, arguments } => said.push_str(&format!("{name}({arguments})")),
        }
    }

    /// Adds the answer to the record.
    pub fn close(&mut self, usage: &Usage) {
        if let Some(answer) = &self.said {
            tracing::info!(id = %self.record.id, answer, "answer");
        }
        self.record.note_answer(usage, self.end, self.is_first);
    }
}
