//! GPUs that are not there, do not fit or fail, on the emulated GPU: every fault is an error that says what to do, and
//! after it the engine goes on, or refuses everything if the device is gone. Nothing aborts and nothing hangs.
//!
//! The program runs itself once for every fault, since a process has one driver.

#[path = "../../cuda/tests/emulated/mod.rs"]
mod emulated;
mod loaded;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use loaded::{On, Setup, folder, try_load};
use mambo_engine::{Engine, EngineError, Event, FinishReason, Request};

/// No fault takes longer than so.
const PATIENCE: Duration = Duration::from_secs(120);
/// Programs at once.
const AT_ONCE: usize = 2;

/// A machine on which no GPU can be used, and words of what is said about it.
struct Unusable {
    settings: &'static str,
    /// Libraries that are there.
    libraries: &'static [&'static str],
    says: &'static [&'static str],
}

const BOTH: &[&str] = &["libcuda.so.1", "libnvrtc.so.13"];

const UNUSABLE: &[Unusable] = &[
    Unusable { settings: "", libraries: &[], says: &["no NVIDIA driver is installed", "install driver 570"] },
    Unusable { settings: "count=0", libraries: BOTH, says: &["finds no GPU", "nvidia-smi"] },
    Unusable { settings: "driver=12040", libraries: BOTH, says: &["CUDA 12.4", "install driver 570"] },
    Unusable { settings: "arch=75", libraries: BOTH, says: &["Emulated GPU", "7.5, but 8.0 is needed"] },
    Unusable {
        settings: "",
        libraries: &["libcuda.so.1"],
        says: &["NVRTC", "pip install nvidia-cuda-nvrtc"],
    },
    Unusable {
        settings: "driver=12090",
        libraries: BOTH,
        says: &["NVRTC is of CUDA 13", "supports only 12.9"],
    },
    Unusable { settings: "fail=cuInit:1:999", libraries: BOTH, says: &["driver says", "nvidia-smi"] },
    Unusable {
        settings: "memory=700000000 used=690000000",
        libraries: BOTH,
        says: &["MiB free", "nvidia-smi"],
    },
    Unusable { settings: "fail=cuCtxSetCurrent:1:719", libraries: BOTH, says: &["is lost"] },
];

/// Calls of the driver that are made to fail, one after the other.
const CALLS: [&str; 15] = [
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
    "cuMemsetD8Async",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuModuleLoadData",
    "cuFuncSetAttribute",
    "cuLaunchKernelEx",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamSynchronize",
];
/// Which of those calls.
const NUMBERS: [u32; 4] = [1, 3, 12, 60];
/// Out of memory, from which one recovers, and a launch that failed, after which nothing works any more.
const RESULTS: [u32; 2] = [2, 719];

fn request() -> Request {
    Request { prompt: (1..40).collect(), max_tokens: Some(8), ..Default::default() }
}

/// The tokens of an answer, or why it failed.
fn answer(engine: &mut Engine, request: Request) -> Result<Vec<u32>, String> {
    engine.submit(request).map_err(|error| error.to_string())?;
    let (mut tokens, mut failed) = (Vec::new(), None);
    while !engine.is_idle() {
        for event in engine.step() {
            match event {
                Event::Token { choice, .. } => tokens.push(choice.token),
                Event::Finished { reason: FinishReason::Failed(why), .. } => failed = Some(why.to_string()),
                _ => {}
            }
        }
    }
    failed.map_or(Ok(tokens), Err)
}

/// Answers on a device that may fail at some moment; prints what came of it for the other process.
fn run_with_fault() -> Result<(), String> {
    let setup = Setup { sequences: 2, ..Setup::default() };
    let mut engine = match try_load(&folder("moe"), On::Cuda, setup, None) {
        Ok(engine) => engine,
        Err(problem) => {
            println!("not loaded: {problem}");
            return Ok(());
        }
    };
    let with_snapshot = Request { snapshot_at: Some(20), ..request() };
    if let Err(problem) = answer(&mut engine, with_snapshot) {
        println!("failed: {problem}");
    }
    if engine.is_lost() {
        return match engine.submit(request()) {
            Err(EngineError::Lost(_)) => Ok(()),
            other => Err(format!("a request on a lost device gave {other:?}")),
        };
    }
    // What comes after a fault is as if there had been none.
    let tokens = answer(&mut engine, request())?;
    println!("answer: {tokens:?}");
    Ok(())
}

/// Why nothing runs; printed for the other process.
fn run_unusable() -> Result<(), String> {
    match try_load(&folder("moe"), On::Cuda, Setup::default(), None) {
        Ok(_) => Err("the model was loaded".into()),
        Err(problem) => {
            println!("{problem}");
            Ok(())
        }
    }
}

/// What is wrong with what a program printed.
type Judge = Box<dyn Fn(&str) -> Result<(), String>>;

/// A program that runs with a fault.
struct Running {
    what: String,
    child: Child,
    begin: Instant,
    judge: Judge,
}

/// Runs programs, a few at once, and gathers what is wrong.
#[derive(Default)]
struct Runs {
    running: Vec<Running>,
    problems: Vec<String>,
    count: usize,
}

impl Runs {
    fn start(
        &mut self,
        what: String,
        mut command: Command,
        judge: impl Fn(&str) -> Result<(), String> + 'static,
    ) {
        while self.running.len() >= AT_ONCE {
            self.collect();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.count += 1;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        match command.spawn() {
            Ok(child) => {
                self.running.push(Running { what, child, begin: Instant::now(), judge: Box::new(judge) });
            }
            Err(error) => self.problems.push(format!("{what}: {error}")),
        }
    }

    fn collect(&mut self) {
        let mut left = Vec::new();
        for mut running in std::mem::take(&mut self.running) {
            match running.child.try_wait() {
                Ok(None) if running.begin.elapsed() < PATIENCE => left.push(running),
                Ok(None) => {
                    let _ = running.child.kill();
                    self.problems.push(format!("{}: hangs", running.what));
                }
                Ok(Some(_)) => self.judge(running),
                Err(error) => self.problems.push(format!("{}: {error}", running.what)),
            }
        }
        self.running = left;
    }

    fn judge(&mut self, running: Running) {
        let Running { what, child, judge, .. } = running;
        let problem = match child.wait_with_output() {
            Err(error) => Some(error.to_string()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                match output.status.success() {
                    true => judge(&text).err().map(|problem| format!("{problem}; it printed\n{text}")),
                    false => {
                        Some(format!("{}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
                    }
                }
            }
        };
        self.problems.extend(problem.map(|problem| format!("{what}: {problem}")));
    }

    fn finish(mut self) -> (usize, Vec<String>) {
        while !self.running.is_empty() {
            self.collect();
            std::thread::sleep(Duration::from_millis(5));
        }
        (self.count, self.problems)
    }
}

/// A folder with some of the libraries.
fn libraries(from: &Path, names: &[&str], number: usize) -> std::io::Result<std::path::PathBuf> {
    let folder = from.join(format!("some-{number}"));
    fs::create_dir_all(&folder)?;
    for name in names {
        fs::copy(from.join(name), folder.join(name))?;
    }
    Ok(folder)
}

fn all(emulated_gpu: &Path) -> Result<(usize, Vec<String>), String> {
    let clean = emulated::this_program(emulated_gpu, "").arg("fault").output();
    let clean = clean.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&clean.stdout).into_owned();
    let Some(want) = text.lines().find(|line| line.starts_with("answer: ")).map(str::to_owned) else {
        return Err(format!(
            "without a fault there is no answer: {text}{}",
            String::from_utf8_lossy(&clean.stderr)
        ));
    };
    let mut runs = Runs::default();
    for (number, machine) in UNUSABLE.iter().enumerate() {
        let folder = libraries(emulated_gpu, machine.libraries, number).map_err(|error| error.to_string())?;
        let mut command = emulated::this_program(&folder, machine.settings);
        command.arg("unusable");
        let says = machine.says;
        runs.start(format!("`{}` with {:?}", machine.settings, machine.libraries), command, move |text| {
            match says.iter().find(|words| !text.contains(**words)) {
                Some(words) => Err(format!("it does not say `{words}`")),
                None => Ok(()),
            }
        });
    }
    for call in CALLS {
        for (number, result) in NUMBERS.into_iter().flat_map(|number| RESULTS.map(|result| (number, result)))
        {
            let settings = format!("fail={call}:{number}:{result}");
            let mut command = emulated::this_program(emulated_gpu, &settings);
            command.arg("fault");
            let want = want.clone();
            runs.start(settings, command, move |text| {
                let answers = text.lines().filter(|line| line.starts_with("answer: "));
                match answers.clone().all(|line| line == want) {
                    true if text.is_empty() => Err("nothing was said".into()),
                    true => Ok(()),
                    false => Err(format!("another answer than {want}")),
                }
            });
        }
    }
    Ok(runs.finish())
}

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("fault") => run_with_fault(),
        Some("unusable") => run_unusable(),
        _ => {
            let folder = match emulated::build() {
                Ok(folder) => folder,
                Err(reason) => {
                    println!("SKIPPED: no GPU can be emulated, so none failed: {reason}");
                    return ExitCode::SUCCESS;
                }
            };
            let done = all(&folder);
            let _ = fs::remove_dir_all(&folder);
            done.and_then(|(count, problems)| {
                println!("{count} machines with a fault");
                if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
            })
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}
