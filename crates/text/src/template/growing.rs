//! Filters and methods that make a long text of short ones: how long it will be is asked before they run. All others
//! make about as much as they are given, which is measured afterwards.

use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, State, filters};

use super::bounds::{size, take};

/// Replaces the filters that grow by guarded ones.
pub(super) fn install(environment: &mut Environment) {
    environment.add_filter("#replace", filters::replace);
    environment.add_filter("#join", filters::join);
    environment.add_filter("#indent", filters::indent);
    environment.add_filter("#format", filters::format);
    environment.add_filter("#batch", filters::batch);
    environment.add_filter("#slice", filters::slice);
    for name in ["replace", "join", "indent", "format", "batch", "slice"] {
        let plain = format!("#{name}");
        environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            ask(state, name, &arguments)?;
            state.apply_filter(&plain, &arguments)
        });
    }
}

/// Takes what a filter will make of its arguments.
pub(super) fn ask(state: &mut State, name: &str, arguments: &[Value]) -> Result<(), Error> {
    let mut given = 0;
    for argument in arguments {
        given += size(state, argument)?;
    }
    let text = |index: usize| arguments.get(index).and_then(Value::as_str);
    // Numbers stand among the arguments or among those with names; the largest bounds all.
    let numbers = arguments.iter().flat_map(|argument| match argument.is_kwargs() {
        true => {
            argument.try_iter().into_iter().flatten().filter_map(|key| argument.get_item(&key).ok()).collect()
        }
        false => vec![argument.clone()],
    });
    let largest = numbers.filter_map(|number| number.as_usize()).max().unwrap_or(4) as u64;
    let times = |count: usize, each: u64| (count as u64).saturating_mul(each);
    let more = match name {
        "replace" => {
            let found = text(0).zip(text(1)).map_or(0, |(all, part)| all.matches(part).count());
            times(found, text(2).map_or(given, |text| text.len() as u64))
        }
        "join" => times(arguments[0].len().unwrap_or(0), text(1).map_or(0, |text| text.len() as u64)),
        "indent" => times(text(0).map_or(0, |text| text.lines().count() + 1), largest),
        "format" => {
            let form = text(0).unwrap_or_default();
            let widths = form.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            let widths = widths.map(|digits| digits.parse::<u64>().unwrap_or(u64::MAX));
            let places = form.matches(['%', '{']).count();
            widths.fold(0, u64::saturating_add).saturating_add(times(places, given.saturating_add(largest)))
        }
        "batch" | "slice" => largest.saturating_mul(32),
        _ => 0,
    };
    take(state, given.saturating_add(more))
}
