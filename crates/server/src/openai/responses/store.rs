//! Conversations that responses belong to, for requests that go on from them.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use serde_json::Value;

use crate::error::{ApiError, Kind};

/// Responses that are remembered, and the text they may hold together; the oldest go first.
const MOST: usize = 1024;
const MOST_BYTES: usize = 64 << 20;

#[derive(Default)]
struct Kept {
    conversations: HashMap<String, Vec<Value>>,
    /// Oldest first, with the bytes of each.
    order: VecDeque<(String, usize)>,
    bytes: usize,
}

/// Conversations by the id of their last response.
#[derive(Default)]
pub(crate) struct ResponseStore(Mutex<Kept>);

impl ResponseStore {
    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The messages up to and with a response.
    pub fn get(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        self.lock().conversations.get(id).cloned().ok_or_else(|| {
            let message = format!("there is no response `{id}`; it is too old, or was not stored");
            ApiError { field: Some("previous_response_id".into()), ..ApiError::new(Kind::NotFound, message) }
        })
    }

    /// Remembers a conversation.
    pub fn insert(&self, id: String, messages: Vec<Value>) {
        let mut kept = self.lock();
        let bytes = messages.iter().map(|message| message.to_string().len()).sum();
        kept.bytes += bytes;
        kept.order.push_back((id.clone(), bytes));
        kept.conversations.insert(id, messages);
        while kept.order.len() > MOST || kept.bytes > MOST_BYTES {
            let Some((oldest, bytes)) = kept.order.pop_front() else { break };
            kept.bytes -= bytes;
            kept.conversations.remove(&oldest);
        }
    }
}
