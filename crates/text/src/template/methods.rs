//! The Python methods templates call on strings, lists and maps. Knows the contrib crate's set and adds
//! what published templates use beyond it.

use minijinja::value::{Value, from_args};
use minijinja::{Error, State};

use super::growing;

/// Calls `method` on `value`.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (method, args) {
        // A separator joins its argument, other than the filter has it.
        ("join", [items]) => growing::ask(state, method, &[items.clone(), value.clone()])?,
        ("replace" | "format", _) => {
            let all: Vec<Value> = [value].into_iter().chain(args).cloned().collect();
            growing::ask(state, method, &all)?;
        }
        _ => {}
    }
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    match method {
        "removeprefix" => Some(one_text(args).map(|cut| text.strip_prefix(cut).unwrap_or(text).into())),
        "removesuffix" => Some(one_text(args).map(|cut| text.strip_suffix(cut).unwrap_or(text).into())),
        "partition" => Some(one_text(args).map(|at| match text.split_once(at) {
            Some((before, after)) => [before, at, after].into_iter().map(Value::from).collect(),
            None => [text, "", ""].into_iter().map(Value::from).collect(),
        })),
        "rpartition" => Some(one_text(args).map(|at| match text.rsplit_once(at) {
            Some((before, after)) => [before, at, after].into_iter().map(Value::from).collect(),
            None => ["", "", text].into_iter().map(Value::from).collect(),
        })),
        "rsplit" => match from_args::<(Option<&str>, Option<i64>)>(args) {
            Ok((Some(separator), limit)) => Some(Ok(rsplit(text, separator, limit))),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        },
        _ => None,
    }
}

fn one_text(args: &[Value]) -> Result<&str, Error> {
    from_args::<(&str,)>(args).map(|(text,)| text)
}

fn rsplit(text: &str, separator: &str, limit: Option<i64>) -> Value {
    let mut parts: Vec<&str> = match limit.and_then(|limit| usize::try_from(limit).ok()) {
        Some(limit) => text.rsplitn(limit + 1, separator).collect(),
        None => text.rsplit(separator).collect(),
    };
    parts.reverse();
    parts.into_iter().map(Value::from).collect()
}
