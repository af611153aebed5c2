//! Clients that dawdle, crowd or send too much head are cut off, and others do not notice.

mod client;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use client::{Running, chat, serve};
use serde_json::json;

const HEAD: &[u8] = b"GET /health HTTP/1.1\r\nhost: localhost\r\n";

/// Whether the other side ends a connection within some seconds, whatever it says before.
fn is_ended(stream: &mut TcpStream, seconds: u64) -> bool {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut buffer = vec![0; 1 << 20];
    while Instant::now() < deadline {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return true,
        }
    }
    false
}

fn open_connections(server: &Running) -> usize {
    let metrics = server.get("/metrics").body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("mambo:connections "));
    line.expect("connections are counted").parse().unwrap()
}

#[test]
fn limits_beyond_all_counting_are_none() {
    let server = client::serve(1, |config| {
        config.connections = usize::MAX;
        config.time_limit = std::time::Duration::MAX;
    });
    assert_eq!(server.ask("Hello!", serde_json::json!({"max_tokens": 1}))["object"], "chat.completion");
}

#[test]
fn several_hosts_are_refused() {
    let server = client::serve(1, |_| {});
    let request =
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    let reply = server.send_raw(request);
    assert!(reply.status == 400 && reply.body.contains("several hosts"), "{}", reply.body);
}

#[test]
fn a_head_that_does_not_come_ends_the_connection() {
    let server = serve(1, |config| config.head_timeout = Duration::from_millis(400));
    let mut silent = server.connect();
    let mut slow = server.connect();
    slow.write_all(HEAD).unwrap();
    let mut between = server.connect();
    between.write_all(&[HEAD, b"\r\n"].concat()).unwrap();
    let mut dripping = server.connect();
    let dripped = std::thread::spawn(move || {
        // A byte now and then must not buy more time.
        for byte in HEAD.iter().cycle().take(60) {
            if dripping.write_all(&[*byte]).is_err() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        is_ended(&mut dripping, 1)
    });
    for (stream, what) in [(&mut silent, "silent"), (&mut slow, "slow"), (&mut between, "between requests")] {
        assert!(is_ended(stream, 5), "{what}");
    }
    assert!(dripped.join().unwrap());
    // An answer may take as long as it likes.
    assert_eq!(server.ask("Tell me a story.", json!({"max_tokens": 200}))["object"], "chat.completion");
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let server = serve(1, |config| config.read_timeout = Duration::from_millis(500));
    let mut stream = server.connect();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    // More answers than the system holds between the two.
    let mut written = 0;
    while written < 64 << 20 && stream.write_all(&request).is_ok() {
        written += request.len();
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while open_connections(&server) > 1 {
        assert!(Instant::now() < deadline, "the connection is still open after {written} bytes");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn there_are_only_so_many_connections() {
    let server = serve(1, |config| config.connections = 3);
    let mut held: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut held {
        stream.write_all(&[HEAD, b"\r\n"].concat()).unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
    }
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("retry-after"), "{answer}");
    held.pop();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let mut stream = server.connect();
        let mut start = [0; 12];
        let asked = stream.write_all(&[HEAD, b"connection: close\r\n\r\n"].concat());
        if asked.is_ok() && stream.read_exact(&mut start).is_ok() && &start == b"HTTP/1.1 200" {
            break;
        }
        assert!(Instant::now() < deadline, "a place that was left stays taken");
    }
}

#[test]
fn heads_have_a_size() {
    let server = serve(1, |_| {});
    let long = format!("x-long: {}\r\n", "y".repeat(100 << 10));
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    for extra in [long, many] {
        let mut stream = server.connect();
        // The server may close before it has read all.
        let _ = stream.write_all(&[HEAD, extra.as_bytes(), b"\r\n"].concat());
        let mut start = [0; 12];
        let answered = stream.read_exact(&mut start).is_ok();
        assert!(!answered || &start == b"HTTP/1.1 431", "{}", String::from_utf8_lossy(&start));
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_server_that_stops_lets_answers_end() {
    let server = serve(1, |config| config.grace = Duration::from_secs(20));
    let body = chat("Tell me a story.", json!({"stream": true, "max_tokens": 300})).to_string();
    let mut stream = server.connect();
    stream.write_all(&server.bytes("POST", "/v1/chat/completions", &[], &body)).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    let mut idle = server.connect();
    idle.write_all(&[HEAD, b"\r\n"].concat()).unwrap();
    assert!(idle.read(&mut [0; 1024]).unwrap() > 0);
    let begun = Instant::now();
    drop(server);
    assert!(begun.elapsed() < Duration::from_secs(15), "an idle connection held the server up");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "{rest}");
}
