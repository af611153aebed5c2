//! Who answers in a conversation: a model that this program runs, or anything else that takes turns.

use anyhow::{Result, bail};
use mambo_runtime::{Conversation, Engine, GenerateOptions, Model, ModelText};

use crate::args::{ModelArgs, SampleArgs};
use crate::interrupt::Interrupt;
use crate::open;
use crate::reply::{Show, Timed, answer};

/// The other side of a conversation.
pub trait Partner {
    /// What it is called.
    fn name(&self) -> String;

    /// Answers a question, to its end or to Ctrl-C, and shows every piece as soon as it is certain.
    fn answer(
        &mut self,
        conversation: &mut Conversation,
        user: &str,
        interrupt: &Interrupt,
        show: Show,
    ) -> Result<Timed>;

    /// Most tokens of a conversation, where they are known.
    fn context_tokens(&self) -> Option<usize>;

    /// That a conversation of so many tokens is too long, and what helps.
    fn full(&self, tokens: usize) -> String;
}

/// A model in this program.
pub struct LocalModel {
    model: Model,
    text: ModelText,
    engine: Engine,
    options: GenerateOptions,
    sample: SampleArgs,
}

impl LocalModel {
    /// Loads the model that the flags name.
    pub fn load(args: &ModelArgs, tokens: Option<usize>, sample: &SampleArgs) -> Result<LocalModel> {
        let model = open::model(args.model.as_deref())?;
        let text = model.text()?;
        // Before the weights are loaded, which may take minutes.
        text.template()?;
        sample.over(text.sampling())?;
        let engine = open::engine(&model, args.place, &args.load_options())?;
        let options = GenerateOptions { max_tokens: tokens, sampling: None };
        Ok(LocalModel { model, text, engine, options, sample: sample.clone() })
    }
}

impl Partner for LocalModel {
    fn name(&self) -> String {
        self.model.name().to_owned()
    }

    fn answer(
        &mut self,
        conversation: &mut Conversation,
        user: &str,
        interrupt: &Interrupt,
        show: Show,
    ) -> Result<Timed> {
        let prompt = conversation.ask(&self.text, user)?;
        if prompt.tokens.len() >= self.engine.config().context_tokens {
            bail!("{}", self.full(prompt.tokens.len()));
        }
        // Here and not once: every answer gets a seed of its own.
        let sampling = Some(self.sample.over(self.text.sampling())?);
        let options = GenerateOptions { sampling, ..self.options.clone() };
        answer(&mut self.engine, &self.text, prompt, options, interrupt, show)
    }

    fn context_tokens(&self) -> Option<usize> {
        Some(self.engine.config().context_tokens)
    }

    fn full(&self, tokens: usize) -> String {
        let context = self.engine.config().context_tokens;
        let trained = self
            .model
            .spec
            .context
            .map_or(String::new(), |n| format!(" (this model was trained on {n} tokens)"));
        format!(
            "the context is full: the conversation has {tokens} tokens and the context holds {context}; \
             /reset starts over, a larger --context holds more{trained}"
        )
    }
}
