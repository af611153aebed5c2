//! `mambo run` and `mambo chat` with `--server`: what a server answers is what a model here answers, and what goes
//! wrong says so.

mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use program::{EndlessChat, Served, json, piped, refusal, refused, scratch, worked, works};
use serde_json::{Value, json};

/// A server of the built-in model, and its address.
fn serve(arguments: &[&str]) -> (Served, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_mambo"))
        .args(["serve", "--port", "0", "--threads", "1", "--log-level", "off"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut served = Served(child);
    let lines = BufReader::new(served.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.into_iter().find(|line| line.contains("listening on ")).expect("the server starts");
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    (served, url.to_owned())
}

/// A server that answers its one request with these bytes and closes.
fn says(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // All of the request: a socket closed on unread bytes may take the answer with it.
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if let Some(count) = line.strip_prefix("content-length: ") {
                length = count.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length]).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    });
    url
}

fn repository(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_server_answers_as_a_model_here_does() {
    let (_served, url) = serve(&["--prefix-cache", "off", "--context", "512"]);
    let tools = repository("tests/fixtures/text/weather-tool.json");
    let messages = scratch("talk.json");
    let talk =
        json!({"messages": [{"role": "user", "content": "What is 17 + 25?"}], "enable_thinking": false});
    std::fs::write(&messages, talk.to_string()).unwrap();
    let cases: [&[&str]; 8] = [
        &["What is 17 + 25?"],
        &["--no-think", "What is 17 + 25?"],
        &["--system", "Be brief.", "-n", "7", "Hello!"],
        &["--tools", &tools, "What is the weather in Paris?"],
        &["--messages", messages.to_str().unwrap()],
        &["--raw", "-n", "30", "Once upon a time"],
        // To its end: left alone, a server would stop after 16 tokens.
        &["--raw", "Hello"],
        &[
            "--seed",
            "7",
            "--temp",
            "1.5",
            "--top-k",
            "40",
            "--logit-bias",
            "11=-2",
            "-n",
            "20",
            "Tell me a story.",
        ],
    ];
    for case in cases {
        let greedy: &[&str] = if case.contains(&"--temp") { &[] } else { &["--temp", "0"] };
        let asked = [&["run"], greedy, case].concat();
        let here = [&asked[..], &["--context", "512"]].concat();
        let there = [&asked[..], &["--server", &url]].concat();
        assert_eq!(works(&there).0, works(&here).0, "{case:?}");
        let (here, there) = (json(&here), json(&there));
        for field in
            ["content", "reasoning", "tool_calls", "finish_reason", "prompt_tokens", "completion_tokens"]
        {
            assert_eq!(there[field], here[field], "{case:?}, {field}: {there}");
        }
        assert_eq!(there["tokens"], Value::Null);
    }
}

#[test]
fn log_probabilities_are_told_in_both_dialects() {
    let (_served, url) = serve(&[]);
    for kind in [&["Hello!"][..], &["--raw", "Once upon"]] {
        let arguments = [&["run", "--temp", "0", "-n", "3", "--logprobs", "2"], kind].concat();
        let (here, there) = (json(&arguments), json(&[&arguments[..], &["--server", &url]].concat()));
        let (here, there) = (here["logprobs"].as_array().unwrap(), there["logprobs"].as_array().unwrap());
        assert_eq!(there.len(), 3, "{there:?}");
        for (here, there) in here.iter().zip(there) {
            assert_eq!((&there["text"], &there["logprob"]), (&here["text"], &here["logprob"]));
            assert_eq!(there["top"].as_array().unwrap().len(), 2);
        }
    }
}

#[test]
fn a_conversation_reuses_what_the_server_has_read() {
    let (_served, url) = serve(&["--name", "mine"]);
    let file = scratch("saved.json");
    let input = format!(
        "/system Be kind.\nHello!\n/no_think\nWhat is 17 + 25?\n/save {}\n/stats\n/reset\n/think\nHello!\n",
        file.display()
    );
    let arguments = ["chat", "--json", "--temp", "0"];
    let (out, error) = worked(&piped(&[&arguments[..], &["--server", &url, "-m", "mine"]].concat(), &input));
    let turns: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let (here, _) = worked(&piped(&arguments, &input));
    for (there, here) in turns.iter().zip(here.lines()) {
        let here: Value = serde_json::from_str(here).unwrap();
        for field in ["content", "reasoning", "turn", "context_used", "prompt_tokens"] {
            assert_eq!(there[field], here[field], "{field}: {there}");
        }
    }
    assert_eq!(turns.len(), 3);
    assert!(turns[1]["reused_tokens"].as_u64().unwrap() > 5, "{}", turns[1]);
    assert!(error.contains("2 turns: ") && error.contains(" were reused"), "{error}");
    assert!(!error.contains("of which 0 were reused") && !error.contains("not counted"), "{error}");
    assert_eq!((&saved["model"], saved["messages"].as_array().unwrap().len()), (&"mine".into(), 5));
}

/// Sequences that run, as the server's metrics tell.
fn running(url: &str) -> String {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find(|line| line.starts_with("vllm:num_requests_running"));
    line.and_then(|line| line.split_whitespace().last()).expect("the metric is there").to_owned()
}

#[test]
fn interrupting_ends_the_answer_on_the_server_too() {
    let (_served, url) = serve(&[]);
    let chat = EndlessChat::start(&["--server", &url]);
    assert_eq!(running(&url), "1");
    chat.interrupt();
    let begun = Instant::now();
    while running(&url) != "0" {
        assert!(begun.elapsed() < Duration::from_secs(10), "the server goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let error = chat.leave();
    assert!(error.starts_with("(stopped)\n1 turn: 0 prompt tokens"), "{error}");
    assert!(error.contains("not counted: 1 turn"), "{error}");
}

#[test]
fn keys_and_models_that_are_wrong_are_named() {
    let file = |text: &str| {
        let path = scratch("key.txt");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong, empty) = (file("sesame\nsecond line\n"), file("guess\n"), file("\n"));
    let (_served, url) = serve(&["--api-key-file", &file("sesame\n")]);
    let ask = ["run", "--server", &url, "-n", "1", "Hello!"];
    assert_eq!(
        refused(&ask),
        format!("{url} asks for an API key; write it into a file and give that with --api-key-file FILE")
    );
    let with = |more: &[&str]| refused(&[&ask[..], more].concat());
    let sentence = with(&["--api-key-file", &wrong]);
    assert_eq!(sentence, format!("{url} refuses the key in {wrong}; check --api-key-file"));
    assert!(with(&["--api-key-file", &empty]).starts_with(&format!("the first line of {empty} is no key")));
    assert!(with(&["--api-key-file", "/nowhere/key"]).contains("check --api-key-file"));
    let sentence = with(&["--api-key-file", &right, "-m", "other"]);
    assert!(
        sentence.starts_with(&format!("{url}: there is no model `other`; this server has `tiny-hybrid`"))
    );
    assert!(sentence.ends_with("; -m names a model of the server"), "{sentence}");
    works(&[&ask[..], &["--api-key-file", &right, "-m", "tiny-hybrid"]].concat());
    let sentence = refusal(&piped(&["chat", "--server", &url], "Hello!\n"));
    assert!(sentence.contains("asks for an API key"), "{sentence}");
}

#[test]
fn servers_that_fail_are_named_with_what_helps() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    assert_eq!(
        refused(&["run", "--server", &url, "Hello!"]),
        format!(
            "nothing listens at {url}; start a server there with `mambo serve --port {port}`, or check --server"
        )
    );
    let cases = [
        (
            "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 39\r\n\r\n\
             {\"error\": {\"message\": \"256 wait here\"}}",
            " is busy: 256 wait here; it asks to wait 7 s",
        ),
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found",
            " has no chat or completions in OpenAI's dialect (not found); check --server",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", " does not stream its answers; check --server"),
        ("SSH-2.0-OpenSSH_9.2\r\n", " did not answer: it does not answer in HTTP/1.1; check --server"),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
             1e\r\ndata: {\"choices\":[{\"delta\":{\"",
            " ended early: the connection was closed too early; ask again",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
             data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n",
            " ended early: the connection was closed too early; ask again",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
             data: {\"error\":{\"message\":\"the time is over\"}}\n\n",
            " gave its answer up: the time is over",
        ),
    ];
    for (answer, want) in cases {
        let url = says(answer);
        let sentence = refused(&["run", "--server", &url, "Hello!"]);
        assert!(sentence.contains(&format!("{url}{want}")), "{sentence}");
    }
}

/// The first line of what clap says.
fn usage_error(arguments: &[&str]) -> String {
    let output = piped(arguments, "");
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap().lines().next().unwrap().to_owned()
}

#[test]
fn flags_that_make_no_sense_with_a_server_are_refused() {
    let flags = [
        ("--threads", "2"),
        ("--context", "64"),
        ("--chunk", "8"),
        ("--kv-type", "q8"),
        ("--state-type", "f16"),
    ];
    for (flag, value) in flags {
        let error = usage_error(&["chat", "--server", "http://127.0.0.1:1", flag, value]);
        assert!(error.contains("--server") && error.contains(flag), "{error}");
    }
    let error = usage_error(&["run", "--server", "https://gpu.example", "Hello!"]);
    assert!(
        error.contains("plain HTTP") && error.contains("ssh -L 8080:localhost:8080 gpu.example"),
        "{error}"
    );
    usage_error(&["run", "--api-key-file", "key.txt", "Hello!"]);
    let sentence = refused(&["run", "--server", "http://127.0.0.1:1", "--temp=-1", "Hello!"]);
    assert!(sentence.ends_with("; --temp sets it"), "{sentence}");
}
