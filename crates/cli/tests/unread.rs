//! Output that nobody reads: work goes on, exit codes stay what they are, nothing panics.

mod program;

use std::process::{Command, ExitStatus, Stdio};

use program::{fixture, scratch};

/// Runs the program with a standard error whose reader has left; returns standard output too.
fn unread(arguments: &[&str]) -> (ExitStatus, String) {
    let (reader, writer) = std::io::pipe().expect("the system has pipes");
    drop(reader);
    ended(arguments, writer.into())
}

fn ended(arguments: &[&str], error: Stdio) -> (ExitStatus, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mambo"));
    let output = command.args(arguments).stdin(Stdio::null()).stderr(error).output().unwrap();
    (output.status, String::from_utf8(output.stdout).unwrap())
}

#[test]
fn an_answer_comes_whole_though_nobody_reads_the_notes() {
    let (status, answer) = unread(&["run", "--temp", "0", "--no-think", "Hello!"]);
    assert_eq!((status.code(), answer.as_str()), (Some(0), "Hello! How can I help you today?\n"));
    let out = scratch("logits.safetensors");
    let (status, _) =
        unread(&["logits", "-m", &fixture("dense"), "--ids", "1,2", "-o", out.to_str().unwrap()]);
    assert!(status.success() && out.exists());
}

#[test]
fn a_refusal_that_nobody_reads_is_still_one() {
    let (status, answer) = unread(&["run", "-m", "no-such-model", "Hello!"]);
    assert_eq!((status.code(), answer.as_str()), (Some(1), ""));
}

/// A device that is always full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_error_is_no_panic() {
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(ended(&["run", "--temp", "0", "-n", "2", "Hello!"], full()).0.code(), Some(0));
    assert_eq!(ended(&["run", "--temp=-1", "Hello!"], full()).0.code(), Some(1));
}
