//! Runs the real program and looks at what came of it.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// A server that ends with the test.
pub struct Served(pub Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A golden checkpoint.
pub fn fixture(case: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/checkpoints").join(case);
    path.to_str().expect("the path is text").to_owned()
}

/// A path in a folder nobody else uses.
pub fn scratch(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let own = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(own);
    std::fs::create_dir_all(&folder).expect("there is room for files");
    folder.join(name)
}

/// The config.json of a preset in a folder with nothing else.
pub fn config_alone(preset: &str) -> String {
    let path = scratch("config.json");
    std::fs::write(&path, mambo_model::Preset::named(preset).unwrap().config).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A chat whose answer has begun and would go on until the context is full.
pub struct EndlessChat {
    child: Child,
    pub input: ChildStdin,
    pub output: BufReader<ChildStdout>,
}

impl EndlessChat {
    pub fn start(arguments: &[&str]) -> EndlessChat {
        let mut child = Command::new(env!("CARGO_BIN_EXE_mambo"))
            .args(["chat", "--temp", "0"])
            // The tokens that end an answer.
            .args(["--logit-bias", "11=-100", "--logit-bias", "2=-100"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"Tell me a story.\n").unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.fill_buf().expect("the answer has begun");
        EndlessChat { child, input, output }
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        let kill = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }

    /// Asks for the statistics and leaves; what stood on standard error.
    pub fn leave(mut self) -> String {
        self.input.write_all(b"/stats\n").unwrap();
        drop(self.input);
        self.output.read_to_end(&mut Vec::new()).unwrap();
        let mut error = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(self.child.wait().unwrap().success(), "{error}");
        error
    }
}

/// Runs the program on some standard input.
pub fn piped(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_mambo"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that refuses its arguments does not read its input.
    let _ = child.stdin.take().expect("it was asked for").write_all(input.as_bytes());
    child.wait_with_output().expect("the program ends")
}

/// Standard output and error of a run that worked.
pub fn works(arguments: &[&str]) -> (String, String) {
    worked(&piped(arguments, ""))
}

/// Standard output and error of a run that worked.
pub fn worked(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// The one JSON object of a run that worked.
pub fn json(arguments: &[&str]) -> Value {
    let (out, _) = works(&[arguments, &["--json"]].concat());
    assert_eq!(out.lines().count(), 1, "one object on one line: {out}");
    serde_json::from_str(&out).expect("standard output is JSON")
}

/// The one sentence of a run that was refused.
pub fn refused(arguments: &[&str]) -> String {
    refusal(&piped(arguments, ""))
}

/// The one sentence of a run that was refused; it must be the last line.
pub fn refusal(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    let last = error.lines().last().unwrap_or_default();
    last.strip_prefix("mambo: ").unwrap_or_else(|| panic!("no sentence in {error:?}")).to_owned()
}
