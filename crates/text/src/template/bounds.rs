//! How much memory a template may take. Steps alone do not bound it: forty steps that double a string make a terabyte.
//! The template engine has no hook for its operators, so the compiled instructions are rewritten: what is about to make
//! a longer value is first asked how long, and what was made is measured. A value counts as long as it would print, so
//! that lists which hold one thing many times cannot grow unseen either.
//!
//! The compiler would fold `'x' * 99999999` before anything is asked, so that it is kept from seeing constants there.

use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter};

/// Most bytes of one value.
const MAX_VALUE: u64 = 64 << 20;
/// Most bytes that all values of one rendering may take together, those that were dropped included.
const MAX_TOTAL: u64 = 1 << 30;
/// Most lists in lists; also keeps the engine's own recursion off the end of the stack.
const MAX_DEPTH: usize = 100;
/// What an item takes beside its text.
const ITEM: u64 = 32;

/// Asks before two values are joined.
const BEFORE_JOINING: &str = "#before_joining";
/// Asks before one value is repeated.
const BEFORE_REPEATING: &str = "#before_repeating";
/// Measures what was made.
const MADE: &str = "#made";
/// Stands behind what is multiplied, where the compiler sees a filter and folds nothing; no instruction comes of it.
const NOT_FOLDED: &str = "mambo_not_folded";
/// An instruction that is looked up by name each time.
const NOT_CACHED: u8 = !0;

/// What a rendering has taken so far.
#[derive(Default)]
struct Used(u64);

fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("makes {what}; use a template that makes less"))
}

/// Takes bytes for a value that is about to be made.
pub(super) fn take(state: &mut State, bytes: u64) -> Result<(), Error> {
    if bytes > MAX_VALUE {
        return Err(too_much(&format!("a value of more than {} MiB", MAX_VALUE >> 20)));
    }
    let used = state.get_or_insert_extension(Used::default());
    used.0 += bytes;
    if used.0 > MAX_TOTAL {
        return Err(too_much(&format!("values of more than {} MiB together", MAX_TOTAL >> 20)));
    }
    Ok(())
}

/// A walk over a value that ends where it has seen enough.
#[derive(Default)]
struct Walk {
    bytes: u64,
    items: u64,
}

impl Walk {
    fn over(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_much(&format!("lists more than {MAX_DEPTH} deep")));
        }
        self.items += 1;
        self.bytes += ITEM + value.as_str().map_or(0, |text| text.len() as u64);
        if self.bytes > MAX_VALUE {
            return Err(too_much(&format!("a value of more than {} MiB", MAX_VALUE >> 20)));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.over(&item, depth + 1)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.over(&key, depth + 1)?;
                    self.over(&value.get_item(&key)?, depth + 1)?;
                }
            }
            ValueKind::Bytes => self.bytes += value.as_bytes().map_or(0, |bytes| bytes.len() as u64),
            _ => {}
        }
        Ok(())
    }
}

/// How long a value is as text, at least; the walk over it is paid for too.
pub(super) fn size(state: &mut State, value: &Value) -> Result<u64, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len() as u64);
    }
    let mut walk = Walk::default();
    walk.over(value, 0)?;
    take(state, walk.items)?;
    Ok(walk.bytes)
}

/// Two values as the operator after this wants them on the stack: unpacked, the first comes last.
fn pair(left: Value, right: Value) -> Value {
    [right, left].into_iter().collect()
}

fn before_joining(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    let is_number = |value: &Value| value.kind() == ValueKind::Number;
    if !(is_number(&left) && is_number(&right)) {
        let bytes = size(state, &left)? + size(state, &right)?;
        take(state, bytes)?;
    }
    Ok(pair(left, right))
}

fn before_repeating(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    for (value, times) in [(&left, &right), (&right, &left)] {
        if value.kind() != ValueKind::Number
            && let Some(times) = times.as_usize()
        {
            let bytes = size(state, value)?.saturating_mul(times as u64);
            take(state, bytes)?;
        }
    }
    Ok(pair(left, right))
}

/// Lists are paid for by their items: what is in them was paid for when it was made.
fn made(state: &mut State, value: Value) -> Result<Value, Error> {
    let bytes = match value.as_str() {
        Some(text) => text.len() as u64,
        None => {
            size(state, &value)?;
            value.len().map_or(0, |items| items as u64 * ITEM)
        }
    };
    take(state, bytes)?;
    Ok(value)
}

/// Prepares an environment for instructions that were [`bounded`].
pub(super) fn install(environment: &mut Environment) {
    environment.add_filter(BEFORE_JOINING, before_joining);
    environment.add_filter(BEFORE_REPEATING, before_repeating);
    environment.add_filter(MADE, made);
    environment.set_formatter(|output, state, value| {
        let bytes = size(state, value)?;
        take(state, bytes)?;
        escape_formatter(output, state, value)
    });
}

/// The same template, in which no product is one of constants. Sums and joins of constants are no longer than the
/// template itself.
pub(super) fn unfolded(source: &str, syntax: SyntaxConfig) -> String {
    let (mut output, mut copied) = (String::with_capacity(source.len()), 0);
    let mut follows_operand = false;
    // What is no token at all is the parser's to refuse.
    for (token, span) in tokenize(source, false, syntax).map_while(Result::ok) {
        if matches!(token, Token::Mul) && follows_operand {
            let at = span.start_offset as usize;
            output.push_str(&source[copied..at]);
            output.push('|');
            output.push_str(NOT_FOLDED);
            output.push(' ');
            copied = at;
        }
        follows_operand = matches!(
            token,
            Token::Ident(_)
                | Token::Str(_)
                | Token::String(_)
                | Token::Int(_)
                | Token::Int128(_)
                | Token::Float(_)
                | Token::ParenClose
                | Token::BracketClose
                | Token::BraceClose
        );
    }
    output.push_str(&source[copied..]);
    output
}

/// The same instructions, with questions around those that make values.
pub(super) fn bounded<'source>(
    name: &'source str,
    source: &'source str,
    plain: &Instructions<'source>,
) -> Instructions<'source> {
    let all: Vec<(&Instruction<'source>, u16)> = (0..)
        .map_while(|at| Some((plain.get(at)?, plain.get_line(at).unwrap_or(1).min(u16::MAX.into()) as u16)))
        .collect();
    let mut starts = Vec::with_capacity(all.len() + 1);
    let mut next = 0;
    for (instruction, _) in &all {
        starts.push(next);
        next += with_questions(instruction).len() as u32;
    }
    starts.push(next);
    let moved = |target: u32| starts[target as usize];
    let mut result = Instructions::new(name, source);
    for (instruction, line) in all {
        for instruction in with_questions(instruction) {
            let instruction = match instruction {
                Instruction::Iterate(to) => Instruction::Iterate(moved(to)),
                Instruction::Jump(to) => Instruction::Jump(moved(to)),
                Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(moved(to)),
                Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(moved(to)),
                Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(moved(to)),
                Instruction::BuildMacro(name, to, flags) => Instruction::BuildMacro(name, moved(to), flags),
                other => other,
            };
            result.add_with_line(instruction, line);
        }
    }
    result
}

fn with_questions<'source>(instruction: &Instruction<'source>) -> Vec<Instruction<'source>> {
    let filter = |name: &'static str, values| Instruction::ApplyFilter(name, Some(values), NOT_CACHED);
    let own = instruction.clone();
    match instruction {
        // Text of the template itself is counted where values are: on its way out, or into a block's value.
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst(Value::from_safe_string((*text).to_owned())), Instruction::Emit]
        }
        Instruction::StringConcat | Instruction::Add => {
            vec![filter(BEFORE_JOINING, 2), Instruction::UnpackList(2), own]
        }
        Instruction::Mul => vec![filter(BEFORE_REPEATING, 2), Instruction::UnpackList(2), own],
        Instruction::ApplyFilter(NOT_FOLDED, ..) => Vec::new(),
        Instruction::BuildMap(_)
        | Instruction::BuildList(Some(_))
        | Instruction::BuildTuple(Some(_))
        | Instruction::Slice
        | Instruction::ApplyFilter(..)
        | Instruction::CallMethod(..) => vec![own, filter(MADE, 1)],
        Instruction::CallFunction("dict" | "namespace", _) => vec![own, filter(MADE, 1)],
        _ => vec![own],
    }
}
