//! `mambo serve --config FILE` with the real program, and what it logs.

mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use program::{Served, refused, scratch};
use serde_json::Value;

fn file(text: &str) -> String {
    let path = scratch("serve.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_sets_what_flags_do_not() {
    let file = file(
        "port = 1\nname = [\"from-file\"]\nlog-format = \"json\"\ncontext = 512\nprefix-cache = \"off\"\n",
    );
    let child = Command::new(env!("CARGO_BIN_EXE_mambo"))
        .args(["serve", "--port", "0", "--threads", "1", "--config", &file])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut served = Served(child);
    let mut lines = BufReader::new(served.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let reserved = lines.next().unwrap();
    assert!(reserved.starts_with("from-file: ") && reserved.contains("512 tokens"), "{reserved}");
    assert!(reserved.contains("no prefix cache"), "{reserved}");
    let log: Value = serde_json::from_str(&lines.find(|line| line.starts_with('{')).unwrap()).unwrap();
    assert_eq!((&log["message"], &log["model"]), (&"listening".into(), &"from-file".into()), "{log}");
    let mut stream = TcpStream::connect(log["address"].as_str().unwrap()).unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("from-file") && answer.contains("x-request-id: req-"), "{answer}");
    let log: Value = serde_json::from_str(&lines.find(|line| line.contains("\"request\"")).unwrap()).unwrap();
    assert_eq!((&log["path"], &log["status"]), (&"/v1/models".into(), &200.into()), "{log}");
}

#[test]
fn a_wrong_file_is_refused_before_anything_is_loaded() {
    let wrong = file("port = 0\nqeue = 3\n");
    let sentence = refused(&["serve", "--config", &wrong]);
    assert_eq!(sentence, format!("{wrong}, line 2: `qeue`: is no setting; did you mean `queue`?"));
    for (arguments, words) in [
        (["--config", "/dev/zero"], "more than 1 MiB"),
        (["--api-key-file", "/dev/zero"], "more than 1 MiB"),
        (["--time-limit", "0"], "--time-limit is 0"),
        (["--name", " "], "--name is empty"),
    ] {
        let sentence = refused(&["serve", arguments[0], arguments[1]]);
        assert!(sentence.contains(words) && sentence.contains(arguments[0]), "{arguments:?}: {sentence}");
    }
    let sentence = refused(&["serve", "--config", "/nowhere/serve.toml"]);
    assert!(sentence.contains("/nowhere/serve.toml") && sentence.contains("--config"), "{sentence}");
}
