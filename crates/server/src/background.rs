//! Threads for work that takes long: rendering and cutting long texts, compiling grammars, writing to disk. The system
//! runs them after everything else, because the engine's threads wait for each other: where one of them loses its core
//! for a moment, all answers do.

use std::io;
use std::thread::{Builder, JoinHandle};

/// How much others come first: beside a busy thread it gets a tenth of a core, and all of one that nobody wants.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Starts a thread for such work.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(|| {
        step_back();
        work()
    })
}

/// Lowers this thread's priority, where threads have their own; where that is refused, it runs like others.
fn step_back() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_thread_itself_steps_back() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let before = priority();
        assert_eq!(super::spawn("test", priority).unwrap().join().unwrap(), super::NICE);
        assert_eq!(priority(), before);
    }
}
