//! `/sessions`: the memory of a conversation under a name, kept in a file across restarts. Prompts that start with a
//! session's tokens go on from it without being told.

use std::sync::Arc;

use mambo_engine::{FinishReason, Request, SamplingParams, Snapshot};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::unbounded_channel;
use utoipa::ToSchema;

use crate::asked::Asked;
use crate::chat::Chat;
use crate::disk::Folder;
use crate::error::{ApiError, Kind};
use crate::http::Answer;
use crate::job::{Job, Update};
use crate::openapi::Operation;
use crate::service::Service;
use crate::time::rfc3339;

/// Most sessions that a server keeps, and the longest name of one.
const MOST_SESSIONS: usize = 1000;
const LONGEST_NAME: usize = 64;

/// A conversation to remember.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct SessionRequest {
    /// 1 to 64 letters, digits, `-` and `_`.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: String,
    /// The model's name, or nothing.
    pub model: Option<String>,
    /// Text.
    pub prompt: Option<String>,
    /// Or messages, which the chat template renders; what the next turn shares with them is kept.
    pub messages: Option<Vec<Map<String, Value>>>,
    /// Tools that the chat template mentions.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// More variables of the chat template.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
}

/// A session that was saved.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes JSON")]
struct SavedSession {
    /// Its name.
    name: String,
    /// Tokens that it spares.
    tokens: usize,
    /// Bytes of its file.
    bytes: usize,
}

/// All sessions of this model.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes JSON")]
struct SessionList {
    /// In the order of their names.
    sessions: Vec<SavedSession>,
}

/// A session that was loaded.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes JSON")]
struct LoadedSession {
    /// Its name.
    name: String,
    /// Tokens that it spares.
    tokens: usize,
}

/// A session that was removed.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes JSON")]
struct RemovedSession {
    /// Its name.
    name: String,
    /// True.
    removed: bool,
}

/// These paths for the OpenAPI document.
pub(crate) fn operations() -> Vec<Operation> {
    let example = json!({"name": "rules", "messages": [{"role": "system", "content": "Answer in French."}]});
    let name = "1 to 64 letters, digits, `-` and `_`";
    vec![
        Operation::post::<SessionRequest>("/sessions", "Read a conversation and save its memory", example)
            .describe(
                "Later prompts that start alike go on from it, also after a restart. Needs `--sessions DIR`.",
            )
            .answers::<SavedSession>(),
        Operation::get("/sessions", "All saved conversations").answers::<SessionList>(),
        Operation::get("/sessions/{name}/load", "Bring a saved conversation into memory before it is needed")
            .by("post")
            .parameter("name", name)
            .answers::<LoadedSession>(),
        Operation::get("/sessions/{name}", "Remove a saved conversation")
            .by("delete")
            .parameter("name", name)
            .answers::<RemovedSession>(),
    ]
}

/// `POST /sessions`: runs a conversation as far as needed, and writes its memory.
pub(crate) async fn save(asked: Asked, request: SessionRequest) -> Result<Answer, ApiError> {
    asked.check_model(request.model.as_deref())?;
    let (folder, name) = (folder(&asked)?.clone(), request.name.clone());
    check_name(&name)?;
    if folder.lock().get(&name).is_none() && folder.lock().files().count() >= MOST_SESSIONS {
        let message = format!("there are {MOST_SESSIONS} sessions; remove one with DELETE /sessions/NAME");
        return Err(ApiError::new(Kind::Conflict, message));
    }
    let (tokens, end) = asked.work(|service| tokens_of(service, request)).await?;
    let (count, context) = (tokens.len(), asked.context_tokens);
    if end == 0 {
        return Err(ApiError::new(Kind::Invalid, "the conversation is empty; give at least one token"));
    }
    if count >= context {
        let message =
            format!("the conversation has {count} tokens and the context holds {context}; shorten it");
        return Err(ApiError::new(Kind::Invalid, message));
    }
    asked.recall(&tokens).await;
    let snapshot = snapshot_at(&asked, tokens, end).await?;
    let exported = {
        let snapshot = Arc::clone(&snapshot);
        asked.worker.ask(move |engine| engine.export(&snapshot)).await
    };
    let bytes = exported.ok_or_else(ApiError::stopping)?.map_err(|error| ApiError::from(&error))?;
    let size = bytes.len();
    let written = tokio::task::spawn_blocking({
        let name = name.clone();
        move || folder.write(&name, snapshot.tokens(), &bytes)
    });
    let written = written.await.map_err(|_| ApiError::internal("writing the session failed"))?;
    written.map_err(|error| ApiError::new(Kind::Storage, error.to_string()))?;
    Ok(Answer::Json(json!({"name": name, "tokens": end, "bytes": size})))
}

/// The tokens to run, and how many of them to keep.
fn tokens_of(service: &Service, request: SessionRequest) -> Result<(Vec<u32>, usize), ApiError> {
    match (request.prompt, request.messages) {
        (Some(text), None) => {
            let tokens = service.text.plain(&text).tokens;
            let end = tokens.len();
            Ok((tokens, end))
        }
        (None, Some(messages)) => {
            let messages = messages.into_iter().map(Value::Object).collect();
            let (tools, kwargs) = (request.tools, request.chat_template_kwargs);
            let chat = Chat { messages, tools, kwargs, ..Chat::default() };
            let (prompt, shared) = service.text.chat_with_history(service.chat_request(chat).0)?;
            let end = shared.unwrap_or(prompt.tokens.len());
            // One token more, so that there is something to run after a state that is known.
            let tokens = prompt.tokens[..prompt.tokens.len().min(end + 1)].to_vec();
            Ok((tokens, end))
        }
        _ => Err(ApiError::field("prompt", "give either `prompt` or `messages`")),
    }
}

/// The memory after the first `end` tokens, from the prefix cache or by running them.
async fn snapshot_at(asked: &Asked, tokens: Vec<u32>, end: usize) -> Result<Arc<Snapshot>, ApiError> {
    let kept = tokens[..end].to_vec();
    let kept = asked.worker.ask(move |engine| engine.kept_snapshot(&kept)).await;
    if let Some(snapshot) = kept.ok_or_else(ApiError::stopping)? {
        return Ok(snapshot);
    }
    let (sender, mut updates) = unbounded_channel();
    let request = Request {
        prompt: tokens,
        max_tokens: Some(1),
        sampling: SamplingParams::default(),
        uses_cache: true,
        snapshot_at: Some(end),
        priority: asked.priority.unwrap_or(0),
        ..Request::default()
    };
    asked.worker.submit(Job::new(request, sender, asked.config.time_limit))?;
    let mut taken = None;
    while let Some(update) = updates.recv().await {
        match update {
            Update::Snapshot(snapshot) => taken = Some(snapshot),
            Update::Finished(FinishReason::Failed(why)) => return Err((&*why).into()),
            Update::TimedOut => return Err(ApiError::new(Kind::Timeout, "reading the text took too long")),
            Update::ShuttingDown => return Err(ApiError::stopping()),
            _ => {}
        }
    }
    taken.ok_or_else(|| ApiError::internal("the engine ended without the session's memory; try again"))
}

/// `GET /sessions`.
pub(crate) fn list(service: &Service) -> Result<Value, ApiError> {
    let folder = folder(service)?.lock();
    let mut sessions: Vec<_> = folder.files().collect();
    sessions.sort_by(|a, b| a.name.cmp(&b.name));
    let sessions = sessions.into_iter().map(|file| {
        let used = file.used.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        json!({
            "name": file.name, "tokens": file.tokens, "bytes": file.bytes, "used_at": rfc3339(used.as_secs() as i64),
        })
    });
    Ok(json!({"sessions": sessions.collect::<Vec<_>>()}))
}

/// `POST /sessions/{name}/load`: brings a session into memory before it is needed.
pub(crate) async fn load(service: &Service, name: &str) -> Result<Value, ApiError> {
    let folder = known(service, name)?;
    let tokens = service.load_session(folder, name).await?;
    Ok(json!({"name": name, "tokens": tokens}))
}

/// `DELETE /sessions/{name}`.
pub(crate) fn remove(service: &Service, name: &str) -> Result<Value, ApiError> {
    known(service, name)?.lock().remove(name)?;
    Ok(json!({"name": name, "removed": true}))
}

fn folder(service: &Service) -> Result<&Folder, ApiError> {
    let missing =
        || ApiError::new(Kind::NotFound, "this server keeps no sessions; start it with `--sessions DIR`");
    service.disk.sessions.as_ref().ok_or_else(missing)
}

/// The folder, if it has a session of this name.
fn known<'s>(service: &'s Service, name: &str) -> Result<&'s Folder, ApiError> {
    let folder = folder(service)?;
    check_name(name)?;
    let missing = || ApiError::new(Kind::NotFound, format!("there is no session `{name}` of this model"));
    folder.lock().get(name).is_some().then_some(folder).ok_or_else(missing)
}

/// Names become names of files, so nothing but plain characters is let through.
fn check_name(name: &str) -> Result<(), ApiError> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if is_plain && (1..=LONGEST_NAME).contains(&name.len()) {
        return Ok(());
    }
    Err(ApiError::field("name", format!("give 1 to {LONGEST_NAME} letters, digits, `-` or `_`")))
}
