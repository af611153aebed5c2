//! The layout rules of ARCHITECTURE.md as a check: every finding is one line naming file and rule.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Longest file of logic, in lines.
const MAX_FILE_LINES: usize = 600;
/// Longest function, in lines.
const MAX_FUNCTION_LINES: usize = 80;

/// What each crate may depend on among ours: the arrows of ARCHITECTURE.md.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("checkpoint", &["tensor"]),
    ("kernel", &["tensor"]),
    ("graph", &["tensor", "kernel"]),
    ("model", &["tensor", "kernel", "graph", "checkpoint"]),
    ("plan", &["tensor", "kernel", "graph"]),
    ("cpu", &["tensor", "kernel"]),
    ("cuda", &["tensor", "kernel"]),
    ("webgpu", &["tensor", "kernel"]),
    ("engine", &["tensor", "kernel", "graph", "plan"]),
    ("text", &[]),
    ("runtime", &["tensor", "checkpoint", "kernel", "graph", "model", "engine", "text"]),
    ("convert", &["tensor", "checkpoint", "kernel", "graph", "model", "engine", "text", "runtime"]),
    ("server", &["kernel", "model", "engine", "text", "runtime"]),
    ("web", &["checkpoint", "kernel", "cpu", "webgpu", "engine", "text", "runtime"]),
    ("hub", &["checkpoint"]),
    ("testkit", &["tensor", "kernel"]),
    (
        "cli",
        &[
            "tensor",
            "checkpoint",
            "kernel",
            "graph",
            "model",
            "plan",
            "cpu",
            "cuda",
            "webgpu",
            "engine",
            "text",
            "runtime",
            "convert",
            "server",
            "hub",
            "testkit",
        ],
    ),
];

/// Where `unsafe` may stand.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/cpu/",
    "crates/cuda/src/",
    "crates/webgpu/src/pipelines.rs",
    "crates/checkpoint/src/mapping.rs",
];

/// Where no file may have a twin.
const HELD_ONCE: &[&str] = &["crates", "models", "tests", "fuzz/seeds"];

/// Names that say nothing.
const BANNED_FILES: &[&str] = &["utils.rs", "util.rs", "helpers.rs", "misc.rs", "common.rs"];

/// Every violation in the repository at `root`.
pub fn findings(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    dependencies(root, &mut found)?;
    let mut sources = BTreeMap::new();
    for folder in ["crates", "xtask", "fuzz"] {
        collect(root, &root.join(folder), &mut sources)?;
    }
    for (path, text) in &sources {
        check_source(path, text, &mut found);
    }
    let mut files = Vec::new();
    for folder in HELD_ONCE {
        list(&root.join(folder), &mut files)?;
    }
    for (first, second) in twins(&files)? {
        let shown = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
        found.push(format!("{}: equal to {}; keep one and read it there", shown(&second), shown(&first)));
    }
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", ".ci/run"]
    {
        if !root.join(document).is_file() {
            found.push(format!("{document}: missing"));
        }
    }
    Ok(found)
}

/// Reads every Rust file below `folder`, by path relative to the root.
fn collect(root: &Path, folder: &Path, into: &mut BTreeMap<String, String>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" {
            collect(root, &path, into)?;
        } else if name.ends_with(".rs") {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            into.insert(relative, text);
        }
    }
    Ok(())
}

/// Every file below `folder`.
fn list(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        match path.is_dir() {
            true if path.ends_with("target") || path.ends_with("__pycache__") => {}
            true => list(&path, into)?,
            false => into.push(path),
        }
    }
    Ok(())
}

/// Files with the same content as one before them; only those of equal length are read.
fn twins(files: &[PathBuf]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut by_length: BTreeMap<u64, Vec<&PathBuf>> = BTreeMap::new();
    for path in files {
        by_length.entry(path.metadata()?.len()).or_default().push(path);
    }
    let mut found = Vec::new();
    for group in by_length.values().filter(|group| group.len() > 1) {
        let mut known: BTreeMap<Vec<u8>, &PathBuf> = BTreeMap::new();
        for &path in group {
            let content = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            match known.get(&content) {
                Some(&first) => found.push((first.clone(), path.clone())),
                None => drop(known.insert(content, path)),
            }
        }
    }
    Ok(found)
}

/// Arrows between crates point one way.
fn dependencies(root: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(root.join("crates"))? {
        let folder = entry?.path();
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml"))
            .with_context(|| format!("crates/{name} has no Cargo.toml"))?;
        let Some((_, allowed)) = MAY_DEPEND.iter().find(|(krate, _)| *krate == name) else {
            found.push(format!("crates/{name}: not in the table of who may depend on whom"));
            continue;
        };
        // Tests may use more than the crate itself.
        let production = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for line in production.lines() {
            let Some(used) = line.strip_prefix("mambo-").and_then(|rest| rest.split(['.', ' ']).next())
            else {
                continue;
            };
            if !allowed.contains(&used) {
                found.push(format!("crates/{name}/Cargo.toml: {name} must not depend on {used}"));
            }
        }
    }
    Ok(())
}

/// The rules that one file can break alone.
fn check_source(path: &str, text: &str, found: &mut Vec<String>) {
    let mut say = |line: usize, what: &str| found.push(format!("{path}:{line}: {what}"));
    let file_name = path.rsplit('/').next().unwrap_or(path);
    let is_test = path.contains("/tests/") || file_name == "tests.rs" || path.starts_with("fuzz/");
    if BANNED_FILES.contains(&file_name) {
        say(1, "a file's name says its one job");
    }
    if !text.starts_with("//!") && !text.starts_with("#!") {
        say(1, "a file opens with `//!` and its one job");
    }
    let logic = text.split("#[cfg(test)]").next().unwrap_or(text).lines().count();
    if logic > MAX_FILE_LINES && !is_test {
        say(1, &format!("{logic} lines; split what is over {MAX_FILE_LINES}"));
    }
    let here = path == "xtask/src/tidy.rs";
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let code = line.split("//").next().unwrap_or_default();
        let unsafe_here = code.contains("unsafe ") && !code.contains("unsafe_code");
        if unsafe_here && !here && !UNSAFE_ALLOWED.iter().any(|allowed| path.starts_with(allowed)) {
            say(number, "`unsafe` only in backends and checkpoint/src/mapping.rs");
        }
        // The macros panic where nobody reads; the program has functions that do not, in `cli/src/terminal.rs`.
        let prints = code.contains("print!(") || code.contains("println!(");
        if prints && path.starts_with("crates/") && path.contains("/src/") {
            say(number, "libraries print nothing, and the program through cli/src/terminal.rs");
        }
        let forbidden = [
            ("env::var", "no environment variables steer the program"),
            ("todo!(", "no stubs"),
            ("unimplemented!(", "no stubs"),
            ("#[ignore", "no skipped tests"),
            ("TODO", "an open point belongs to the issue tracker"),
            ("FIXME", "an open point belongs to the issue tracker"),
            ("dbg!(", "no debugging leftovers"),
        ];
        for (word, rule) in forbidden {
            // The one file that reads the environment says so in its name.
            let excused = here || (word == "env::var" && path == "crates/cli/src/environment.rs");
            if line.contains(word) && !excused {
                say(number, rule);
            }
        }
    }
    for (start, length) in long_functions(text) {
        if !is_test {
            say(start, &format!("a function of {length} lines; split what is over {MAX_FUNCTION_LINES}"));
        }
    }
}

/// Functions over the limit, by first line and length. Relies on rustfmt: a function's closing brace
/// stands alone at its opening line's indentation.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut long = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        let is_function =
            ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "unsafe fn ", "pub unsafe fn "]
                .iter()
                .any(|head| body.starts_with(head));
        // A function without a body, or with an empty one, is over where it is declared.
        if !is_function || body.ends_with(';') || body.ends_with("{}") {
            continue;
        }
        let closes = |l: &&str| l.len() == indent + 1 && l.ends_with('}') && l.trim_start() == "}";
        let length = lines[start..].iter().position(closes).map_or(0, |end| end + 1);
        if length > MAX_FUNCTION_LINES {
            long.push((start + 1, length));
        }
    }
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check_source(path, text, &mut found);
        found
    }

    #[test]
    fn this_repository_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands in the root");
        let found = findings(root).expect("the repository can be read");
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }

    #[test]
    fn a_file_under_two_names_is_found() {
        let this = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tidy.rs");
        let other = this.with_file_name("main.rs");
        assert_eq!(twins(&[this.clone(), other]).unwrap(), []);
        assert_eq!(twins(&[this.clone(), this.clone()]).unwrap(), [(this.clone(), this)]);
    }

    #[test]
    fn each_rule_can_fail() {
        assert_eq!(check("crates/text/src/lib.rs", "//! Good.\nfn f() {}\n"), Vec::<String>::new());
        assert_eq!(check("crates/text/src/lib.rs", "fn f() {}\n").len(), 1);
        assert_eq!(check("crates/text/src/utils.rs", "//! x\n").len(), 1);
        let danger = "//! x\nfn f() { unsafe { } }\n";
        assert_eq!(check("crates/text/src/lib.rs", danger).len(), 1);
        assert_eq!(check("crates/cpu/src/team.rs", danger).len(), 0);
        assert_eq!(check("crates/cpu/src/a.rs", "//! x\nlet v = std::env::var(\"X\");\n").len(), 1);
        for macro_name in ["println", "eprintln", "eprint"] {
            let prints = format!("//! x\nfn f() {{ {macro_name}!(\"x\") }}\n");
            assert_eq!(check("crates/cli/src/a.rs", &prints).len(), 1, "{macro_name}");
            assert_eq!(check("crates/runtime/examples/a.rs", &prints).len(), 0);
        }
        let long = format!("//! x\nfn f() {{\n{}}}\n", "    x();\n".repeat(MAX_FUNCTION_LINES));
        assert_eq!(check("crates/cpu/src/a.rs", &long).len(), 1);
        let big = format!("//! x\n{}", "const A: u8 = 1;\n".repeat(MAX_FILE_LINES));
        assert_eq!(check("crates/cpu/src/a.rs", &big).len(), 1);
    }
}
