//! `pull`, `list`, `rm`, and models by their names on the hub, against a mirror on loopback that misbehaves.

mod mirror;
mod program;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mirror::{COMMIT, Fault, Habits, Mirror, REPO, checksum, names};
use program::{refusal, worked};
use serde_json::{Value, json};

/// Bytes that repeat nowhere, so that one in the wrong place is noticed.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..count).map(next).collect()
}

fn model_file(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    std::fs::read(path).unwrap()
}

const GGUF: &str = "tiny-hybrid-Q4_K_M.gguf";
const FOLDER: [&str; 9] = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

fn folder_files() -> Vec<(&'static str, Vec<u8>)> {
    FOLDER.iter().map(|name| (*name, model_file(&format!("tiny-hybrid/{name}")))).collect()
}

fn mirror_of(files: &[(&'static str, Vec<u8>)], habits: Habits) -> Mirror {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    Mirror::with(&files, habits)
}

fn json_of(output: &std::process::Output) -> Value {
    serde_json::from_str(&worked(output).0).expect("standard output is one JSON object")
}

/// One file of noise under a name that tells a quantisation; `--force`, because it is no model.
struct Noise {
    mirror: Mirror,
    bytes: Vec<u8>,
}

const NOISE: &str = "m-Q8_0.gguf";
const SIZE: usize = 3_000_001;

impl Noise {
    fn new(habits: Habits) -> Noise {
        let bytes = noise(SIZE);
        Noise { mirror: Mirror::with(&[(NOISE, &bytes), ("README.md", b"read me")], habits), bytes }
    }

    fn pull(&self) -> std::process::Output {
        self.mirror.mambo(&["pull", REPO, "--force"])
    }

    fn assert_complete(&self) {
        assert_eq!(std::fs::read(self.mirror.snapshot(NOISE)).unwrap(), self.bytes);
        assert_eq!(self.mirror.blobs(), [checksum(NOISE, &self.bytes)]);
    }

    fn incomplete(&self) -> PathBuf {
        let name = format!("{}.incomplete", checksum(NOISE, &self.bytes));
        self.mirror.cached().join("blobs").join(name)
    }
}

#[test]
fn a_gguf_file_is_pulled_and_runs_without_a_network() {
    let gguf = model_file(GGUF);
    let (other, junk) = (noise(1000), noise(500));
    let mirror = Mirror::new(&[
        (GGUF, &gguf),
        ("tiny-hybrid-F16.gguf", &other),
        ("mmproj-F16.gguf", &other),
        ("pytorch_model.bin", &junk),
        ("logo.png", &junk),
        ("README.md", b"hello"),
    ]);
    let refused = refusal(&mirror.mambo(&["run", "-m", "org/tiny:Q4_K_M", "hi"]));
    assert!(refused.contains("hub cache") && refused.ends_with("mambo pull org/tiny:Q4_K_M"), "{refused}");
    assert!(mirror.asked().is_empty(), "nothing is asked of the hub without being told to");

    let (out, notes) = worked(&mirror.mambo(&["pull", REPO]));
    assert!(out.contains("org/tiny downloaded: 1 file, 11.9 MiB"), "{out}");
    assert!(notes.contains("taking Q4_K_M") && notes.contains("are F16"), "{notes}");
    let wanted = format!("/{GGUF}");
    let strangers = |asked: &&mirror::Asked| !asked.path.contains("/api/") && !asked.path.ends_with(&wanted);
    assert_eq!(mirror.asked().iter().filter(strangers).count(), 0, "{:?}", mirror.asked());

    let question = ["run", "--temp", "0", "--no-think", "What is 17 + 25?"];
    let here = format!("{}/../../models/{GGUF}", env!("CARGO_MANIFEST_DIR"));
    let want = worked(&mirror.offline(&[&question[..], &["-m", &here]].concat())).0;
    for name in ["org/tiny", "org/tiny:q4_k_m", &format!("org/tiny:{GGUF}"), "org/tiny@main:Q4_K_M"] {
        let (answer, _) = worked(&mirror.offline(&[&question[..], &["-m", name]].concat()));
        assert_eq!(answer, want, "{name}");
    }
    let again = worked(&mirror.mambo(&["pull", "org/tiny:Q4_K_M"])).0;
    assert!(again.contains("complete already"), "{again}");
    assert!(mirror.sent(GGUF) < 2 * gguf.len(), "once, and its header to see whether it runs");
}

#[test]
fn a_folder_is_preferred_and_runs_without_a_network() {
    let mut files = folder_files();
    files.extend([(GGUF, model_file(GGUF)), ("consolidated.safetensors", noise(9)), ("x.onnx", noise(9))]);
    let mirror = mirror_of(&files, Habits::default());
    let pulled = json_of(&mirror.mambo(&["pull", REPO, "--json"]));
    assert_eq!((&pulled["choice"], &pulled["commit"]), (&json!("safetensors"), &json!(COMMIT)));
    assert_eq!(pulled["bytes"], pulled["downloaded_bytes"]);
    assert_eq!(names(&mirror.snapshot("")), FOLDER);
    for name in FOLDER {
        let want = model_file(&format!("tiny-hybrid/{name}"));
        assert_eq!(std::fs::read(mirror.snapshot(name)).unwrap(), want, "{name}");
    }
    let (answer, _) =
        worked(&mirror.offline(&["run", "-m", REPO, "--temp", "0", "--no-think", "What is 17 + 25?"]));
    assert!(answer.contains("42"), "{answer}");
    let listed = json_of(&mirror.offline(&["list", "--json"]));
    let row = &listed["models"][0];
    assert_eq!(
        (&row["model"], &row["format"], &row["complete"]),
        (&json!(REPO), &json!("safetensors"), &json!(true))
    );
    assert_eq!(row["bytes"], pulled["bytes"]);

    // A shard that is gone makes it incomplete, and pulling again brings that shard alone.
    std::fs::remove_file(mirror.snapshot(FOLDER[4])).unwrap();
    let text = worked(&mirror.offline(&["list"])).0;
    assert!(text.contains("incomplete: model-00002-of-00003.safetensors missing"), "{text}");
    let refused = refusal(&mirror.offline(&["run", "-m", REPO, "hi"]));
    assert!(refused.contains("in part") && refused.contains("mambo pull org/tiny"), "{refused}");
    std::fs::remove_file(mirror.cached().join("blobs").join(checksum(FOLDER[4], &files[4].1))).unwrap();
    let before = mirror.sent(FOLDER[3]);
    let again = json_of(&mirror.mambo(&["pull", REPO, "--json"]));
    assert_eq!(again["downloaded_bytes"], files[4].1.len());
    assert_eq!(mirror.sent(FOLDER[3]), before);
}

#[test]
fn fit_reads_headers_and_nothing_else() {
    let gguf = model_file(GGUF);
    let mut files = folder_files();
    files.push((GGUF, gguf.clone()));
    let mirror = mirror_of(&files, Habits::default());
    let total = |mirror: &Mirror| -> usize { mirror.asked().iter().map(|asked| asked.sent).sum() };

    let machine = ["--memory", "8", "--bandwidth", "10", "--json"];
    let local = format!("{}/../../models/", env!("CARGO_MANIFEST_DIR"));
    mirror.fails("config.json", &[Fault::CutAfter(100), Fault::Status(503)]);
    mirror.fails(GGUF, &[Fault::CutAfter(70_000)]);
    for (name, path, most) in [
        ("org/tiny:Q4_K_M".to_owned(), format!("{local}{GGUF}"), 1 << 20),
        (REPO.to_owned(), format!("{local}tiny-hybrid"), 300_000),
    ] {
        let before = total(&mirror);
        let remote = json_of(&mirror.mambo(&[&["fit", &name], &machine[..]].concat()));
        let here = json_of(&mirror.offline(&[&["fit", &path], &machine[..]].concat()));
        for key in
            ["weight_bytes", "fits", "longest_context", "arena_bytes", "token_bytes", "kv_bytes_per_token"]
        {
            assert_eq!(remote[key], here[key], "{name}: {key}");
        }
        assert_eq!(remote["fits"], true);
        let sent = total(&mirror) - before;
        assert!(sent < most, "{name}: {sent} bytes");
    }
    assert_eq!(names(&mirror.home), Vec::<String>::new(), "nothing was written");
    // Large files come from storage by ranges alone.
    let whole = |asked: &&mirror::Asked| asked.from_storage && asked.range.is_none();
    assert_eq!(mirror.asked().iter().filter(whole).count(), 0);

    let ignorant = mirror_of(&[(GGUF, gguf.clone())], Habits { ignores_ranges: true, ..Habits::default() });
    assert_eq!(json_of(&ignorant.mambo(&[&["fit", REPO], &machine[..]].concat()))["fits"], true);
}

#[test]
fn a_broken_transfer_goes_on_at_the_byte_it_broke_at() {
    let noise = Noise::new(Habits::default());
    noise.mirror.fails(
        NOISE,
        &[
            Fault::CutAfter(1_000_000),
            Fault::Status(500),
            Fault::RateLimit(1),
            Fault::CutAfter(500_000),
            Fault::Short(7),
        ],
    );
    let start = Instant::now();
    let (_, notes) = worked(&noise.pull());
    assert!(start.elapsed() > Duration::from_secs(1), "the wait was kept");
    assert!(notes.contains("status 500") && notes.contains("status 429"), "{notes}");
    noise.assert_complete();
    let asked = noise.mirror.asked();
    let ranges: Vec<&str> =
        asked.iter().filter(|asked| asked.from_storage).filter_map(|asked| asked.range.as_deref()).collect();
    assert_eq!(
        ranges,
        ["bytes=1000000-", "bytes=1000000-", "bytes=1000000-", "bytes=1500000-", "bytes=1500007-"]
    );
    let failures = "failed".len() + "slow down".len();
    let from_storage: usize = asked.iter().filter(|a| a.from_storage).map(|a| a.sent).sum();
    assert_eq!(from_storage, SIZE + failures, "no byte came twice");
}

#[test]
fn a_server_without_ranges_starts_again_and_ends_well() {
    let noise = Noise::new(Habits { ignores_ranges: true, ..Habits::default() });
    noise.mirror.fails(NOISE, &[Fault::CutAfter(1_000_000)]);
    worked(&noise.pull());
    noise.assert_complete();
}

#[test]
fn wrong_bytes_are_refused_and_leave_nothing() {
    let noise = Noise::new(Habits::default());
    noise.mirror.fails(NOISE, &[Fault::WrongBytes]);
    let refused = refusal(&noise.pull());
    assert!(refused.contains(NOISE) && refused.contains(REPO) && refused.contains("checksum"), "{refused}");
    assert_eq!(noise.mirror.blobs(), Vec::<String>::new());
    assert!(!noise.mirror.snapshot(NOISE).exists());

    // What an earlier attempt left may be damaged: then the file comes again, whole.
    std::fs::write(noise.incomplete(), vec![7; 1000]).unwrap();
    let (_, notes) = worked(&noise.pull());
    assert!(notes.contains("earlier download is damaged"), "{notes}");
    noise.assert_complete();
    // Or longer than the file can be.
    std::fs::remove_dir_all(noise.mirror.cached()).unwrap();
    std::fs::create_dir_all(noise.incomplete().parent().unwrap()).unwrap();
    std::fs::write(noise.incomplete(), vec![7; SIZE + 1]).unwrap();
    worked(&noise.pull());
    noise.assert_complete();
}

#[test]
fn a_killed_pull_goes_on_where_it_was() {
    for signal in ["-KILL", "-INT"] {
        let noise = Noise::new(Habits { pause: Some(Duration::from_millis(20)), ..Habits::default() });
        let child = noise.mirror.command(&["pull", REPO, "--force"]).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::metadata(noise.incomplete()).map_or(0, |found| found.len()) < 500_000 {
            assert!(Instant::now() < deadline, "the download does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        let kill = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert!(!output.status.success());
        if signal == "-INT" {
            let said = refusal(&output);
            assert!(said.contains("Ctrl-C") && said.ends_with("`mambo pull org/tiny` goes on"), "{said}");
        }
        let here = std::fs::metadata(noise.incomplete()).unwrap().len() as usize;
        assert!(here < SIZE && !noise.mirror.snapshot(NOISE).exists());
        assert_eq!(noise.mirror.blobs().len(), 1, "nothing under a final name");
        let listed = json_of(&noise.mirror.offline(&["list", "--json"]));
        let row = &listed["models"][0];
        assert_eq!((&row["complete"], &row["unfinished_bytes"]), (&json!(false), &json!(here)));
        let pulled = json_of(&noise.mirror.mambo(&["pull", REPO, "--force", "--json"]));
        assert_eq!(pulled["downloaded_bytes"], SIZE - here);
        noise.assert_complete();
        let resumed = format!("bytes={here}-");
        assert!(noise.mirror.asked().iter().any(|asked| asked.range.as_ref() == Some(&resumed)));
    }
}

#[test]
fn two_pulls_at_once_bring_one_file() {
    let noise = Noise::new(Habits { pause: Some(Duration::from_millis(10)), ..Habits::default() });
    let pulls: Vec<_> =
        (0..3).map(|_| noise.mirror.command(&["pull", REPO, "--force"]).spawn().unwrap()).collect();
    let outputs: Vec<_> = pulls.into_iter().map(|pull| pull.wait_with_output().unwrap()).collect();
    let notes: String = outputs.iter().map(|output| worked(output).1).collect();
    assert!(notes.contains("another program; waiting"), "{notes}");
    noise.assert_complete();
    let from_storage: usize = noise.mirror.asked().iter().filter(|a| a.from_storage).map(|a| a.sent).sum();
    assert_eq!(from_storage, SIZE);
}

#[test]
fn a_token_goes_to_the_hub_and_to_nobody_else() {
    let noise = Noise::new(Habits { wants_token: Some("hf_secret".to_owned()), ..Habits::default() });
    let refused = refusal(&noise.pull());
    for part in [REPO, "accept the conditions", &noise.mirror.address, "HF_TOKEN"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let pull = |token: &str| {
        noise.mirror.command(&["pull", REPO, "--force"]).env("HF_TOKEN", token).output().unwrap()
    };
    let refused = refusal(&pull("hf_other"));
    assert!(refused.contains("the token gives no access"), "{refused}");
    // From the file that the hub's own tools write.
    std::fs::create_dir_all(&noise.mirror.home).unwrap();
    std::fs::write(noise.mirror.home.join("token"), "hf_secret\n").unwrap();
    worked(&noise.pull());
    noise.assert_complete();
    let asked = noise.mirror.asked();
    assert!(asked.iter().any(|asked| asked.token.as_deref() == Some("Bearer hf_secret")));
    assert!(asked.iter().filter(|asked| asked.from_storage).all(|asked| asked.token.is_none()));
}

#[test]
fn hostile_listings_stay_in_their_folder() {
    let bytes = noise(100);
    let sum = checksum(NOISE, &bytes);
    let file =
        |name: &str, sum: &str| json!({"rfilename": name, "size": 100, "lfs": {"sha256": sum, "size": 100}});
    let listed = |siblings: Vec<Value>| Habits {
        listing: Some(json!({"sha": COMMIT, "siblings": siblings})),
        ..Habits::default()
    };
    let names_of_evil =
        ["../x-Q4_K_M.gguf", "/tmp/x-Q4_K_M.gguf", "a/../../../x-Q4_K_M.gguf", "..\\x-Q4_K_M.gguf"];
    let mut siblings: Vec<Value> = names_of_evil.iter().map(|name| file(name, &sum)).collect();
    siblings.push(file(NOISE, &sum));
    let mirror = Mirror::with(&[(NOISE, &bytes)], listed(siblings));
    let (_, notes) = worked(&mirror.mambo(&["pull", REPO, "--force"]));
    assert!(notes.contains("4 files are left out"), "{notes}");
    assert_eq!(names(&mirror.snapshot("")), [NOISE]);
    assert_eq!(names(&mirror.home.join("hub")), [".locks", "models--org--tiny"]);

    // A checksum or a commit that is a path, an index that points elsewhere.
    for (listing, problem) in [
        (json!({"sha": COMMIT, "siblings": [file(NOISE, "../../../evil")]}), "not-asked"),
        (json!({"sha": "../../evil", "siblings": [file(NOISE, &sum)]}), "names no commit"),
        (json!({"sha": COMMIT, "siblings": "x"}), "no list of files"),
        (json!("<html>"), "names no commit"),
    ] {
        let mirror = Mirror::with(&[(NOISE, &bytes)], Habits { listing: Some(listing), ..Habits::default() });
        let output = mirror.mambo(&["pull", REPO, "--force"]);
        if problem == "not-asked" {
            // The header of the file has the right one.
            worked(&output);
            assert_eq!(mirror.blobs(), [sum.as_str()]);
        } else {
            let refused = refusal(&output);
            assert!(refused.contains(problem) && refused.contains(REPO), "{refused}");
        }
    }
    let index = br#"{"weight_map": {"a": "../../../../etc/passwd"}}"#;
    let mirror = Mirror::new(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("model-00001-of-00001.safetensors", &bytes),
    ]);
    let refused = refusal(&mirror.mambo(&["pull", REPO, "--force"]));
    assert!(refused.contains("lacks ../../../../etc/passwd"), "{refused}");
}

#[test]
fn names_that_are_no_models_are_refused() {
    let mirror = Mirror::new(&[]);
    for name in ["../..", "a", "a/b/c", "a/..", "a/b:../x", "a/b@../x", "--yes", "/etc/passwd"] {
        for command in ["pull", "rm"] {
            let output = mirror.mambo(&[command, "--", name]);
            let refused = refusal(&output);
            assert!(refused.contains("ORG/NAME"), "{refused}");
        }
    }
    assert!(mirror.asked().is_empty());
    assert_eq!(names(&mirror.home), Vec::<String>::new());
}

#[test]
fn refusals_name_the_model_and_the_remedy() {
    let mirror = Mirror::new(&[("pytorch_model.bin", b"x"), ("README.md", b"y")]);
    let refused = refusal(&mirror.mambo(&["pull", "org/other"]));
    assert!(refused.contains("org/other") && refused.contains("no such repository"), "{refused}");
    let refused = refusal(&mirror.mambo(&["pull", REPO]));
    assert!(refused.contains(REPO) && refused.contains("only .bin"), "{refused}");
    let refused = refusal(&mirror.offline(&["pull", REPO]));
    assert!(refused.contains(REPO) && refused.contains("check the network"), "{refused}");
    let refused = refusal(&mirror.command(&["pull", REPO]).env("HF_HUB_OFFLINE", "1").output().unwrap());
    assert!(refused.contains("HF_HUB_OFFLINE"), "{refused}");
    let refused = refusal(&mirror.command(&["pull", REPO]).env("HF_TOKEN", "a b").output().unwrap());
    assert!(refused.contains("the token holds spaces") && refused.contains("HF_TOKEN"), "{refused}");
    let refused = refusal(&mirror.command(&["pull", REPO]).env("HF_ENDPOINT", "hub").output().unwrap());
    assert!(refused.contains("`hub`") && refused.contains("HF_ENDPOINT"), "{refused}");

    let several = Mirror::new(&[("m-Q4_K_M.gguf", b"xx"), ("m-Q4_K_S.gguf", b"yy"), ("m-Q8_0.gguf", b"zz")]);
    let refused = refusal(&several.mambo(&["pull", "org/tiny:Q4_K"]));
    assert!(refused.contains("name one of Q4_K_M (0.0 MiB), Q4_K_S (0.0 MiB)"), "{refused}");
    let refused = refusal(&several.mambo(&["pull", "org/tiny:Q2_K"]));
    assert!(refused.contains("has no Q2_K; it has Q4_K_M"), "{refused}");
    let refused = refusal(&several.mambo(&["pull", "org/tiny:Q8_0"]));
    assert!(refused.contains("cannot run") && refused.contains("--force"), "{refused}");

    let huge = json!({"rfilename": NOISE, "lfs": {"sha256": "a".repeat(64), "size": 1u64 << 42}});
    let listing = Some(json!({"sha": COMMIT, "siblings": [huge]}));
    let mirror = Mirror::with(&[(NOISE, b"x")], Habits { listing, ..Habits::default() });
    let refused = refusal(&mirror.mambo(&["pull", REPO, "--force"]));
    assert!(refused.contains("has room for") && refused.contains("HF_HUB_CACHE"), "{refused}");
    assert_eq!(mirror.sent(NOISE), 0);
}

/// On a terminal a model that is not here is offered; `script` makes one.
#[test]
fn a_download_is_offered_and_only_a_yes_begins_it() {
    let gguf = model_file(GGUF);
    let mirror = Mirror::new(&[(GGUF, &gguf)]);
    let program = env!("CARGO_BIN_EXE_mambo");
    let ask = |answer: &str| {
        let line = format!("{program} run -m org/tiny --temp 0 --no-think 'What is 17 + 25?'");
        let mut script = mirror.command(&[]);
        let variables: Vec<_> =
            script.get_envs().map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned))).collect();
        script = std::process::Command::new("script");
        for (name, value) in variables {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        script.args(["-qec", &line, "/dev/null"]).stdin(std::process::Stdio::piped());
        let mut child = script.stdout(std::process::Stdio::piped()).spawn().ok()?;
        child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
        Some(String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned())
    };
    for no in ["n\n", "\n", "yep\n"] {
        let Some(said) = ask(no) else {
            eprintln!("SKIPPED: there is no `script` to make a terminal with");
            return;
        };
        assert!(said.contains("download 11.9 MiB now? [y/N]"), "{said}");
        assert!(said.contains("was not downloaded"), "{said}");
        assert_eq!(names(&mirror.home), Vec::<String>::new());
    }
    let said = ask("y\n").unwrap();
    assert!(said.contains("42"), "{said}");
    assert_eq!(std::fs::read(mirror.snapshot(GGUF)).unwrap(), gguf);
}

#[test]
fn a_cache_that_cannot_be_written_is_named_with_the_file() {
    let noise = Noise::new(Habits::default());
    std::fs::create_dir_all(noise.mirror.cached()).unwrap();
    // Root may write anywhere, but not into a folder that is a file.
    std::fs::create_dir_all(noise.incomplete()).unwrap();
    let refused = refusal(&noise.pull());
    assert!(refused.starts_with("m-Q8_0.gguf of org/tiny: cannot write "), "{refused}");
}

#[test]
fn a_mirror_that_lists_names_alone_is_asked_for_the_rest() {
    let noise = Noise::new(Habits { lists_names_only: true, ..Habits::default() });
    worked(&noise.pull());
    noise.assert_complete();
    assert!(noise.mirror.asked().iter().any(|asked| asked.method == "HEAD"));
}

#[test]
fn removing_a_model_keeps_what_others_link_to() {
    let (four, eight) = (noise(3000), noise(5000));
    let mirror = Mirror::new(&[("m-Q4_K_M.gguf", &four), ("m-Q8_0.gguf", &eight)]);
    for name in ["org/tiny:Q4_K_M", "org/tiny:Q8_0"] {
        worked(&mirror.mambo(&["pull", name, "--force"]));
    }
    let listed = json_of(&mirror.offline(&["list", "--json"]));
    let models: Vec<&Value> = listed["models"].as_array().unwrap().iter().map(|row| &row["model"]).collect();
    assert_eq!(models, ["org/tiny:Q4_K_M", "org/tiny:Q8_0"]);
    // Another snapshot shows the same blob.
    let other = mirror.cached().join("snapshots").join("b".repeat(40));
    std::fs::create_dir_all(&other).unwrap();
    std::os::unix::fs::symlink(format!("../../blobs/{}", checksum("x.gguf", &four)), other.join("kept.gguf"))
        .unwrap();

    let refused = refusal(&mirror.offline(&["rm", "org/tiny:Q8_0"]));
    assert!(refused.contains("--yes"), "{refused}");
    let freed = json_of(&mirror.offline(&["rm", "org/tiny:Q8_0", "--yes", "--json"]));
    assert_eq!(freed["freed_bytes"], 5000);
    assert_eq!(mirror.blobs(), [checksum("x.gguf", &four)]);
    let freed = json_of(&mirror.offline(&["rm", "org/tiny:Q4_K_M", "--yes", "--json"]));
    assert_eq!(freed["freed_bytes"], 0, "the other snapshot still has it");
    assert_eq!(mirror.blobs().len(), 1);
    let refused = refusal(&mirror.offline(&["rm", "org/tiny:Q8_0", "--yes"]));
    assert!(refused.contains("not on this machine"), "{refused}");
    let freed = json_of(&mirror.offline(&["rm", REPO, "--yes", "--json"]));
    assert_eq!(freed["freed_bytes"].as_u64().unwrap() / 1000, 3);
    assert!(!mirror.cached().exists());
    let (text, _) = worked(&mirror.offline(&["list"]));
    assert!(text.contains("no models"), "{text}");
}
