//! `--config FILE`: settings of `mambo serve` in TOML. Its keys are the long names of the flags and its values what the
//! flags take, so each becomes an argument that clap checks; there is no second list of names.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches};
use toml::de::{DeTable, DeValue};

use crate::args::{Cli, Command};
use crate::small_file;

/// The command that takes a file.
const COMMAND: &str = "serve";

/// The program's command line, with what a file adds to it. Help and mistakes end the program here, as clap has it.
pub fn command_line() -> Result<Cli> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let matches = Cli::command().get_matches_from(&arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let Command::Serve(serve) = &cli.command else { return Ok(cli) };
    let (Some(path), Some(given)) = (&serve.config, matches.subcommand_matches(COMMAND)) else {
        return Ok(cli);
    };
    let text = small_file::read(path)
        .with_context(|| format!("cannot read the settings in {}; check --config", path.display()))?;
    let all = arguments.into_iter().chain(from_file(path, &text, given)?.into_iter().map(OsString::from));
    let matches = Cli::command().get_matches_from(all);
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// The arguments that a file stands for, those left out that the command line gives itself.
fn from_file(path: &Path, text: &str, given: &ArgMatches) -> Result<Vec<String>> {
    let shown = path.display();
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        anyhow!("{shown}, line {line}: {}; the file is TOML, such as port = 8080", error.message())
    })?;
    let mut arguments = Vec::new();
    for (key, value) in table.get_ref() {
        let place = format!("{shown}, line {}: `{}`", line_of(key.span().start), key.get_ref());
        let (id, own) = setting(key.get_ref(), value.get_ref()).with_context(|| place.clone())?;
        let alone = ["mambo", COMMAND].into_iter().map(str::to_owned).chain(own.iter().cloned());
        // One by one, so that a mistake has a line.
        Cli::command()
            .try_get_matches_from(alone)
            .map_err(|error| anyhow!("{place}: {}", sentence(&error)))?;
        if given.value_source(&id) != Some(ValueSource::CommandLine) {
            arguments.extend(own);
        }
    }
    Ok(arguments)
}

/// The flag of a key, and its arguments.
fn setting(key: &str, value: &DeValue) -> Result<(String, Vec<String>)> {
    let command = Cli::command();
    let serve = command.find_subcommand(COMMAND).expect("the command is there");
    let flag = serve.get_arguments().find(|flag| flag.get_long() == Some(key));
    let Some(flag) = flag.filter(|_| key != "config" && key != "help") else { return Err(unknown(key)) };
    let (is_switch, is_list) =
        (matches!(flag.get_action(), ArgAction::SetTrue), matches!(flag.get_action(), ArgAction::Append));
    let one = |value: &DeValue| Ok(format!("--{key}={}", plain(value)?));
    let arguments = match value {
        DeValue::Boolean(on) if is_switch => on.then(|| format!("--{key}")).into_iter().collect(),
        _ if is_switch => bail!("is {}; make it true or false", kind(value)),
        DeValue::Array(items) if is_list => {
            items.iter().map(|item| one(item.get_ref())).collect::<Result<_>>()?
        }
        DeValue::Array(_) => bail!("is a list, but takes one value"),
        value => vec![one(value)?],
    };
    Ok((flag.get_id().to_string(), arguments))
}

/// A value as the command line would have it.
fn plain(value: &DeValue) -> Result<String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => {
            let value = i128::from_str_radix(number.as_str(), number.radix());
            Ok(value.context("is no whole number that fits")?.to_string())
        }
        DeValue::Float(number) => Ok(number.to_string()),
        other => bail!("is {}; give a number or text", kind(other)),
    }
}

/// What a value is, for messages.
fn kind(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// That there is no such key, with the one that was probably meant.
fn unknown(key: &str) -> anyhow::Error {
    let argument = format!("--{key}");
    let tried = Cli::command().try_get_matches_from(["mambo", COMMAND, &argument]);
    let meant = tried.err().and_then(|error| match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_owned()),
        _ => None,
    });
    match meant {
        Some(meant) => anyhow!("is no setting; did you mean `{meant}`?"),
        None => anyhow!("is no setting; keys are the long flags of `mambo serve --help`"),
    }
}

/// The first line of what clap says.
fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn read(text: &str, arguments: &[&str]) -> Result<Vec<String>> {
        let all = ["mambo", COMMAND].iter().chain(arguments);
        let matches = Cli::command().get_matches_from(all);
        from_file(Path::new("mine.toml"), text, matches.subcommand_matches(COMMAND).unwrap())
    }

    #[test]
    fn keys_are_flags_and_flags_win() {
        let text = "port = 8081\nprefix-cache = \"2G\"\ncors = [\"https://a.example\", \"https://b.example\"]\n\
                    log-prompts = true\n";
        let all =
            ["--port=8081", "--prefix-cache=2G", "--cors=https://a.example", "--cors=https://b.example"];
        let mut read_all = read(text, &[]).unwrap();
        read_all.sort();
        let mut want: Vec<&str> = all.into_iter().chain(["--log-prompts"]).collect();
        want.sort();
        assert_eq!(read_all, want);
        let mut left = read(text, &["--port", "1", "--cors", "https://c.example"]).unwrap();
        left.sort();
        assert_eq!(left, ["--log-prompts", "--prefix-cache=2G"]);
        assert_eq!(read("log-prompts = false\nport = 0x10", &[]).unwrap(), ["--port=16"]);
    }

    #[test]
    fn mistakes_name_file_line_and_key() {
        let cases = [
            ("port = 1\n\nprot = 2\n", "mine.toml, line 3: `prot`: is no setting; did you mean `port`?"),
            ("zzzzz = 2\n", "mine.toml, line 1: `zzzzz`: is no setting; keys are"),
            ("config = \"x\"\n", "mine.toml, line 1: `config`: is no setting"),
            ("port = 99999\n", "mine.toml, line 1: `port`: invalid value '99999'"),
            ("port = true\n", "mine.toml, line 1: `port`: is true or false"),
            ("port = [1]\n", "mine.toml, line 1: `port`: is a list"),
            ("log-prompts = 1\n", "mine.toml, line 1: `log-prompts`: is a number; make it true or false"),
            ("\n[port]\nx = 1\n", "mine.toml, line 2: `port`: is a table"),
            ("port = 1\nport = 2\n", "mine.toml, line 2: duplicate key"),
            ("port: 1\n", "mine.toml, line 1: "),
        ];
        for (text, want) in cases {
            let error = crate::hints::one_sentence(&read(text, &[]).unwrap_err());
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn the_example_is_read_by_the_real_flags() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/mambo.toml");
        let text = std::fs::read_to_string(path).unwrap();
        // What is commented out must hold as well.
        let all: String = text
            .lines()
            .map(|line| {
                line.strip_prefix("#").filter(|rest| rest.contains(" = ")).unwrap_or(line).to_owned() + "\n"
            })
            .collect();
        for text in [text.as_str(), &all] {
            let arguments = read(text, &[]).unwrap();
            assert!(!arguments.is_empty());
            let cli = Cli::try_parse_from(["mambo", COMMAND].into_iter().map(str::to_owned).chain(arguments));
            assert!(matches!(cli.unwrap().command, Command::Serve(_)));
        }
    }
}
