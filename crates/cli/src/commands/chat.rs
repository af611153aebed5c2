//! `mambo chat`: a conversation in the terminal, or one turn per line of a pipe.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use mambo_runtime::{Conversation, FinishReason};
use serde_json::json;

use crate::amounts::counted;
use crate::args::{ModelArgs, SampleArgs};
use crate::commands::run::show_piece;
use crate::hints::one_sentence;
use crate::interrupt::Interrupt;
use crate::lines::{Line, Lines};
use crate::partner::{LocalModel, Partner};
use crate::remote::{Remote, ServerArgs};
use crate::reply::Timed;
use crate::terminal::{Screen, put_json, put_note};

/// `mambo chat`
#[derive(Args)]
#[command(after_help = format!("In the chat:\n{HELP}"))]
pub struct ChatArgs {
    /// Most tokens of one answer
    #[arg(short = 'n', long = "tokens", value_name = "N")]
    pub tokens: Option<usize>,
    /// Answer without thinking first
    #[arg(long)]
    pub no_think: bool,
    /// A system message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Print one JSON object per turn instead of streaming
    #[arg(long)]
    pub json: bool,
    /// The sampling.
    #[command(flatten)]
    pub sample: SampleArgs,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The server, if one answers.
    #[command(flatten)]
    pub server: ServerArgs,
}

const HELP: &str = "  \
  /help          this list
  /reset         forget the conversation, keep the system message
  /think         think before answering
  /no_think      answer at once
  /system TEXT   set the system message; without a text, remove it
  /save FILE     write the conversation as JSON
  /stats         tokens, speed, and what was reused
  /quit          leave; so do Ctrl-D, and Ctrl-C twice
A line that ends in \\ goes on in the next. Ctrl-C stops an answer.";

/// What all turns added up to.
#[derive(Default)]
struct Totals {
    turns: usize,
    /// Turns whose tokens a server did not tell.
    uncounted: usize,
    prompt: usize,
    reused: usize,
    answer: usize,
    last: Option<String>,
    context_used: usize,
}

struct Chat<'a> {
    args: &'a ChatArgs,
    partner: Box<dyn Partner + 'a>,
    interrupt: Interrupt,
    conversation: Conversation,
    totals: Totals,
}

/// Runs the command.
pub fn run(args: &ChatArgs) -> Result<()> {
    let server = Remote::named(&args.server, args.model.model.as_deref(), args.tokens, &args.sample)?;
    let partner: Box<dyn Partner> = match server {
        Some(server) => Box::new(server),
        None => Box::new(LocalModel::load(&args.model, args.tokens, &args.sample)?),
    };
    let mut lines = Lines::new()?;
    if lines.is_terminal() {
        put_note(format_args!("{} is ready; /help lists commands, Ctrl-D leaves", partner.name()));
    }
    let mut chat = Chat {
        args,
        partner,
        interrupt: Interrupt::install()?,
        conversation: Conversation::new(args.system.clone(), args.no_think.then_some(false)),
        totals: Totals::default(),
    };
    chat.talk(&mut lines)
}

impl Chat<'_> {
    fn talk(&mut self, lines: &mut Lines) -> Result<()> {
        let mut leaving = false;
        loop {
            match lines.next()? {
                Line::End => return Ok(()),
                Line::Interrupted if leaving => return Ok(()),
                Line::Interrupted => {
                    leaving = true;
                    put_note("(Ctrl-C again or Ctrl-D leaves)");
                    continue;
                }
                Line::Text(text) => {
                    let text = text.trim();
                    let done = match text {
                        "" => Ok(()),
                        "/quit" | "/exit" => return Ok(()),
                        _ if is_command(text) => self.command(text),
                        _ => self.ask(text),
                    };
                    match done {
                        Ok(()) => {}
                        // A person reads the sentence and tries again; a script must not go on.
                        Err(error) if lines.is_terminal() => put_note(one_sentence(&error)),
                        Err(error) => return Err(error),
                    }
                }
            }
            leaving = false;
        }
    }

    fn command(&mut self, text: &str) -> Result<()> {
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        match name {
            "/help" => put_note(HELP),
            "/reset" => {
                self.conversation.reset();
                self.totals.context_used = 0;
                put_note("(the conversation starts over)");
            }
            "/think" => self.conversation.thinking = Some(true),
            "/no_think" => self.conversation.thinking = Some(false),
            "/system" => self.conversation.set_system(rest),
            "/save" => self.save(rest)?,
            "/stats" => put_note(self.stats()),
            _ => bail!("there is no command {name}; /help lists them"),
        }
        Ok(())
    }

    fn save(&self, file: &str) -> Result<()> {
        if file.is_empty() {
            bail!("/save needs the name of a file, such as /save talk.json");
        }
        let saved = json!({"model": self.partner.name(), "messages": self.conversation.messages()});
        std::fs::write(Path::new(file), format!("{saved:#}\n"))
            .with_context(|| format!("cannot write {file}; choose a folder that exists"))?;
        put_note(format_args!("(wrote {} to {file})", counted(self.conversation.turns(), "turn")));
        Ok(())
    }

    fn stats(&self) -> String {
        let Totals { turns, uncounted, prompt, reused, answer, context_used, last } = &self.totals;
        let context = self.partner.context_tokens().map_or(String::new(), |all| format!(" of {all}"));
        let mut text = format!(
            "{}: {prompt} prompt tokens, of which {reused} were reused and {} run; {answer} answer tokens\n\
             context: {context_used}{context} tokens used",
            counted(*turns, "turn"),
            prompt - reused,
        );
        if *uncounted > 0 {
            text += &format!(
                "\nnot counted: {}, whose tokens the server did not tell",
                counted(*uncounted, "turn")
            );
        }
        if let Some(last) = last {
            text += &format!("\nlast turn: {last}");
        }
        text
    }

    /// One turn; the question is remembered only if it was answered.
    fn ask(&mut self, user: &str) -> Result<()> {
        self.interrupt.clear();
        let quiet = self.args.json;
        let mut screen = Screen::new();
        let mut show = |piece: &_| show_piece(&mut screen, piece, quiet);
        let answered = self.partner.answer(&mut self.conversation, user, &self.interrupt, &mut show);
        screen.end()?;
        let timed = answered?;
        let reply = &timed.reply;
        self.interrupt.clear();
        self.conversation.keep(user, reply);
        self.count(&timed);
        if quiet {
            let mut object = timed.to_json();
            object["turn"] = json!(self.totals.turns);
            object["context_used"] = json!(self.totals.context_used);
            object["context_tokens"] = json!(self.partner.context_tokens());
            put_json(&object)?;
        }
        match reply.finish {
            FinishReason::Cancelled => put_note("(stopped)"),
            FinishReason::Length => {
                let tokens = timed.answer_tokens.or(self.args.tokens).unwrap_or_default();
                put_note(format_args!("(stopped after {})", counted(tokens, "token")));
            }
            FinishReason::Context => {
                put_note(format_args!("({})", self.partner.full(self.totals.context_used)));
            }
            FinishReason::Stop | FinishReason::Failed(_) => {}
        }
        Ok(())
    }

    fn count(&mut self, timed: &Timed) {
        let (totals, reply) = (&mut self.totals, &timed.reply);
        totals.turns += 1;
        let Some(answer_tokens) = timed.answer_tokens else {
            totals.uncounted += 1;
            return;
        };
        let prompt_tokens = reply.prompt_tokens;
        totals.prompt += prompt_tokens;
        totals.reused += reply.reused_tokens;
        totals.answer += answer_tokens;
        totals.context_used = prompt_tokens + answer_tokens;
        let (prefill, decode) = timed.speeds;
        totals.last = Some(format!(
            "{} of {prompt_tokens} prompt tokens reused, {} run at {prefill:.0}/s; {answer_tokens} answer tokens at \
             {decode:.1}/s",
            reply.reused_tokens,
            prompt_tokens - reply.reused_tokens,
        ));
    }
}

/// Whether a line is meant as a command: a slash and a word, not a path.
fn is_command(text: &str) -> bool {
    let name = text.split_whitespace().next().unwrap_or_default();
    name.strip_prefix('/')
        .is_some_and(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_not_a_command() {
        assert!(is_command("/help") && is_command("/system Be brief."));
        assert!(!is_command("/etc/passwd holds what?") && !is_command("/ is the root") && !is_command("hi"));
    }
}
