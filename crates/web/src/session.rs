//! A loaded model that answers requests: each step of the engine becomes events, as JSON that names the request.

use std::collections::HashMap;
use std::sync::Arc;

use mambo_engine::{
    Engine, Event, Export, FinishReason, Logprobs, Request, SamplingParams, ScoreOptions, SequenceId,
    Snapshot,
};
use mambo_kernel::Wait;
use mambo_runtime::{
    Model, ModelText, Piece, Prompt, RuntimeError, TokenPieces, live_view, unit_vector, watch_engine,
};
use mambo_text::{CallDialect, StopStrings};
use serde_json::{Value, json};

use crate::WebError;
use crate::request::{Chat, Common, Completion, read};

/// An engine with the text side of its model.
pub struct Session {
    engine: Engine,
    /// Weights without a tokenizer still take token ids.
    text: Result<ModelText, String>,
    view: Value,
    /// A clock that never goes back.
    milliseconds: fn() -> f64,
    answers: HashMap<SequenceId, Answer>,
    /// What happened that no step has told yet.
    events: Vec<Value>,
    /// Snapshots that were taken and not yet exported, by request.
    snapshots: HashMap<u32, Arc<Snapshot>>,
    exports: HashMap<u32, Export>,
    next_id: u32,
}

/// A request that runs.
struct Answer {
    id: u32,
    pieces: TokenPieces,
    stop: StopStrings,
    /// A stop string was found.
    stopped: bool,
    /// A tool call was made.
    calls: bool,
    prompt_tokens: usize,
    reused_tokens: usize,
    tokens: usize,
    /// When it was asked, when its first token came.
    begun: f64,
    first: Option<f64>,
}

impl Session {
    /// A session of a loaded model; `view` is what [`mambo_runtime::model_view`] tells of it.
    pub(crate) fn new(model: &Model, engine: Engine, mut view: Value, milliseconds: fn() -> f64) -> Session {
        let text = model.text().map_err(|error| error.to_string());
        let usual = model.sampling();
        view["name"] = model.name().into();
        view["recommended"] = json!({"temperature": usual.temperature, "top_p": usual.top_p});
        view["fingerprint"] = engine.fingerprint().to_string().into();
        view["can_chat"] = text.as_ref().is_ok_and(|text| text.template().is_ok()).into();
        view["embedding_size"] = json!(engine.embedding_size());
        Session {
            engine,
            text,
            view,
            milliseconds,
            answers: HashMap::new(),
            events: Vec::new(),
            snapshots: HashMap::new(),
            exports: HashMap::new(),
            next_id: 0,
        }
    }

    /// The model with its layers and the memory it takes.
    pub fn view(&self) -> &Value {
        &self.view
    }

    /// What the engine does now, and did since this was asked before.
    pub fn live(&mut self) -> Value {
        live_view(&mut self.engine, &self.view)
    }

    /// Starts or stops measuring what [`Session::live`] tells.
    pub fn watch(&mut self, on: bool) {
        watch_engine(&mut self.engine, on);
    }

    /// Starts an answer to a conversation.
    pub fn chat(&mut self, json: &str) -> Result<u32, WebError> {
        let chat: Chat = read(json)?;
        let common = chat.common.clone();
        let text = self.text()?;
        let (mut prompt, turn_end) = text.chat_with_history(chat.request())?;
        let mut sampling = common.sampling(text)?;
        if prompt.tools.is_empty() {
            // Nobody could answer a call, so none is begun, and what looks like one is text.
            let open = prompt.style.calls.take().and_then(CallDialect::open);
            let open = open.and_then(|tag| text.tokenizer().id_of(tag));
            sampling.logit_bias.extend(open.map(|token| (token, f32::NEG_INFINITY)));
        }
        let request = Request { turn_ends: turn_end.into_iter().collect(), ..Request::default() };
        self.start(prompt, common, sampling, request)
    }

    /// Starts to go on with a text.
    pub fn complete(&mut self, json: &str) -> Result<u32, WebError> {
        let Completion { prompt, common } = read(json)?;
        let text = self.text()?;
        let (sampling, prompt) = (common.sampling(text)?, text.plain(&prompt));
        self.start(prompt, common, sampling, Request::default())
    }

    /// Starts to compute the embedding of a text.
    pub fn embed(&mut self, text: &str) -> Result<u32, WebError> {
        let prompt = self.text()?.plain(text);
        let request = Request { embeds: true, ..Request::default() };
        self.start(prompt, Common::default(), SamplingParams::default(), request)
    }

    /// Starts to read a conversation for a snapshot of what its next turn shares.
    pub fn snapshot(&mut self, json: &str) -> Result<u32, WebError> {
        let chat: Chat = read(json)?;
        let (mut prompt, shared) = self.text()?.chat_with_history(chat.request())?;
        let end = shared.unwrap_or(prompt.tokens.len());
        if let Some(snapshot) = self.engine.kept_snapshot(&prompt.tokens[..end]) {
            let id = self.new_id();
            self.events.push(json!({"id": id, "type": "snapshot", "tokens": end}));
            self.events.push(json!({"id": id, "type": "finished", "reason": "stop"}));
            self.snapshots.insert(id, snapshot);
            return Ok(id);
        }
        // One token more, so that there is something to run after a state that is known.
        prompt.tokens.truncate(end + 1);
        let common = Common { max_tokens: Some(1), ..Common::default() };
        let request = Request { snapshot_at: Some(end), ..Request::default() };
        self.start(prompt, common, SamplingParams::default(), request)
    }

    /// The bytes of a snapshot that was taken, or nothing while a device still reads them.
    pub fn export(&mut self, id: u32) -> Result<Option<Vec<u8>>, WebError> {
        let mut export = match self.exports.remove(&id) {
            Some(export) => export,
            None => {
                let snapshot = self.snapshots.remove(&id).ok_or(WebError::NoSnapshot)?;
                self.engine.begin_export(&snapshot)?
            }
        };
        let bytes = self.engine.end_export(&mut export, Wait::Poll)?;
        if bytes.is_none() {
            self.exports.insert(id, export);
        }
        Ok(bytes)
    }

    /// Takes a snapshot from anywhere: prompts that begin with its text go on from it. Returns its tokens.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<usize, WebError> {
        let snapshot = Snapshot::from_bytes(bytes)?;
        let tokens = snapshot.tokens().len();
        self.engine.adopt(snapshot)?;
        Ok(tokens)
    }

    /// The tokens of a text.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, WebError> {
        Ok(self.text()?.tokenizer().encode(text, true))
    }

    /// The logits after each of some tokens, for comparisons; nothing may run meanwhile.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, WebError> {
        let mut all = Vec::new();
        let options = ScoreOptions { chunk: 64, ..ScoreOptions::default() };
        self.engine.score(tokens, options, &mut |rows| all.extend_from_slice(rows.logits))?;
        Ok(all)
    }

    /// Ends an answer; it is told as an event.
    pub fn cancel(&mut self, id: u32) {
        let running = self.answers.iter().find(|(_, answer)| answer.id == id).map(|(sequence, _)| *sequence);
        let Some(sequence) = running else { return };
        if let Some(event) = self.engine.cancel(sequence) {
            self.take(event);
        }
    }

    /// Whether nothing runs and all was told.
    pub fn is_idle(&self) -> bool {
        self.answers.is_empty() && self.events.is_empty() && self.engine.is_idle()
    }

    /// Runs the next step, or the next look at one that a device still runs, and returns what happened; nothing if the
    /// step has not ended.
    pub fn step(&mut self) -> Option<Vec<Value>> {
        while self.engine.begin() {}
        let ended = self.engine.end(Wait::Poll);
        let has_ended = ended.is_some();
        ended.into_iter().flatten().for_each(|event| self.take(event));
        let events = std::mem::take(&mut self.events);
        (has_ended || !events.is_empty()).then_some(events)
    }

    fn text(&self) -> Result<&ModelText, WebError> {
        self.text.as_ref().map_err(|problem| WebError::NoText(problem.clone()))
    }

    fn new_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    fn start(
        &mut self,
        prompt: Prompt,
        common: Common,
        sampling: SamplingParams,
        request: Request,
    ) -> Result<u32, WebError> {
        let id = self.new_id();
        let text = self.text()?;
        let stop_tokens = text.stop_tokens().to_vec();
        let answer = Answer {
            id,
            pieces: TokenPieces::new(text, prompt.style, &prompt.tools),
            stop: StopStrings::new(common.stop),
            stopped: false,
            calls: false,
            prompt_tokens: prompt.tokens.len(),
            reused_tokens: 0,
            tokens: 0,
            begun: (self.milliseconds)(),
            first: None,
        };
        let sequence = self.engine.submit(Request {
            prompt: prompt.tokens,
            max_tokens: common.max_tokens,
            stop_tokens,
            sampling,
            uses_cache: true,
            ..request
        })?;
        self.answers.insert(sequence, answer);
        Ok(id)
    }

    /// Turns what happened to a sequence into events.
    fn take(&mut self, event: Event) {
        let sequence = event.id();
        let Some(answer) = self.answers.get_mut(&sequence) else { return };
        let id = answer.id;
        match event {
            Event::Started { reuse, .. } => {
                answer.reused_tokens = reuse.tokens;
                let (prompt, reused) = (answer.prompt_tokens, reuse.tokens);
                let started =
                    json!({"id": id, "type": "started", "prompt_tokens": prompt, "reused_tokens": reused});
                self.events.push(started);
            }
            Event::Token { choice, .. } => {
                answer.tokens += 1;
                answer.first.get_or_insert((self.milliseconds)());
                if let Some(Logprobs { chosen, .. }) = &choice.logprobs {
                    let token = choice.token;
                    self.events.push(json!({"id": id, "type": "token", "token": token, "logprob": chosen}));
                }
                let pieces = answer.pieces.push(choice.token);
                if answer.tell(pieces, &mut self.events) {
                    self.engine.cancel(sequence);
                    self.finish(sequence, "stop", None);
                }
            }
            Event::Embedding { row, .. } => {
                let all = row.len();
                let values = unit_vector(row, all);
                self.events.push(json!({"id": id, "type": "embedding", "values": values}));
            }
            Event::Snapshot { snapshot, .. } => {
                let tokens = snapshot.tokens().len();
                self.events.push(json!({"id": id, "type": "snapshot", "tokens": tokens}));
                self.snapshots.insert(id, snapshot);
            }
            Event::Finished { reason, .. } => {
                let (name, why) = match reason {
                    FinishReason::Stop => ("stop", None),
                    FinishReason::Length => ("length", None),
                    FinishReason::Context => ("context", None),
                    FinishReason::Cancelled => ("cancelled", None),
                    FinishReason::Failed(why) => {
                        let model = self.view["name"].as_str().unwrap_or_default().to_owned();
                        ("error", Some(RuntimeError::Failed { model, why }.to_string()))
                    }
                };
                self.finish(sequence, name, why);
            }
        }
    }

    /// Tells what was held back and that the answer has ended.
    fn finish(&mut self, sequence: SequenceId, reason: &str, error: Option<String>) {
        let Some(mut answer) = self.answers.remove(&sequence) else { return };
        let mut reason = reason;
        if !answer.stopped {
            let pieces = answer.pieces.finish();
            answer.tell(pieces, &mut self.events);
            let held = answer.stop.finish();
            if !held.is_empty() {
                self.events.push(json!({"id": answer.id, "type": "content", "text": held}));
            }
        }
        if answer.calls && reason == "stop" {
            reason = "tool_calls";
        }
        let now = (self.milliseconds)();
        let first = answer.first.unwrap_or(now);
        self.events.push(json!({
            "id": answer.id, "type": "finished", "reason": reason, "error": error,
            "prompt_tokens": answer.prompt_tokens, "reused_tokens": answer.reused_tokens,
            "completion_tokens": answer.tokens,
            "prompt_ms": first - answer.begun, "completion_ms": now - first,
        }));
    }
}

impl Answer {
    /// Tells what is certain; says whether a stop string has ended the answer.
    fn tell(&mut self, pieces: Vec<Piece>, events: &mut Vec<Value>) -> bool {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => {
                    events.push(json!({"id": self.id, "type": "reasoning", "text": text}))
                }
                Piece::Content(text) => {
                    let passed = self.stop.push(&text);
                    if !passed.text.is_empty() {
                        events.push(json!({"id": self.id, "type": "content", "text": passed.text}));
                    }
                    if passed.stop.is_some() {
                        self.stopped = true;
                        return true;
                    }
                }
                Piece::ToolCall { name, arguments } => {
                    self.calls = true;
                    let call =
                        json!({"id": self.id, "type": "tool_call", "name": name, "arguments": arguments});
                    events.push(call);
                }
            }
        }
        false
    }
}
