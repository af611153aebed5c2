//! Every kernel is compiled for every architecture, without a GPU, and in every form for Hopper and another one: it must not spill registers or use a stack, and has
//! the tensor-core instructions that it exists for. Needs libnvrtc, where the system finds libraries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use mambo_cuda::{Arch, CompileError, Compiled, Compiler, Expects, Specialisation, specialisations};

/// The compiler's own words about one entry: its lines of the log.
fn lines_about<'l>(log: &'l str, entry: &str) -> Vec<&'l str> {
    let quoted = format!("'{entry}'");
    let from =
        log.lines().skip_while(|line| !(line.contains("Compiling entry function") && line.contains(&quoted)));
    let own = from.enumerate().take_while(|(i, line)| *i == 0 || !line.contains("Compiling entry function"));
    own.map(|(_, line)| line).collect()
}

/// The intermediate code of one entry.
fn code_of<'p>(ptx: &'p str, entry: &str) -> &'p str {
    let start = ptx.find(&format!(".entry {entry}("));
    let code = start.map_or("", |start| &ptx[start..]);
    code.find("\n}").map_or(code, |end| &code[..end])
}

fn problems(kernel: &Specialisation, arch: Arch, compiled: &Compiled) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = lines_about(&compiled.log, kernel.entry());
    match lines.iter().find(|line| line.contains("bytes stack frame")) {
        None => problems.push("the compiler says nothing of its stack".to_owned()),
        Some(line) if !line.contains(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") => {
            problems.push(line.trim().to_owned());
        }
        Some(_) => {}
    }
    let code = code_of(&compiled.ptx, kernel.entry());
    // Warpgroup products are more than what is asked for where they take the place of others.
    let wanted: &[&str] = match kernel.expects() {
        Expects::Nothing => &[],
        Expects::Wgmma if arch.is_hopper() => &["wgmma.mma_async"],
        Expects::Mma if arch.is_hopper() => &["mma.sync", "wgmma.mma_async"],
        Expects::Mma | Expects::Wgmma => &["mma.sync"],
    };
    if !wanted.is_empty() && !wanted.iter().any(|wanted| code.contains(wanted)) {
        problems.push(format!("has no {}", wanted.join(" or ")));
    }
    problems
}

/// A module of an architecture with the kernels that are taken from it.
type Module = (Arch, Vec<Specialisation>);

/// All kernels in all their forms for Hopper, which has forms of its own. The other architectures share theirs: each
/// compiles every entry, and a share of its forms, so that every form is compiled for one of them too.
fn modules() -> Vec<Module> {
    let mut modules: BTreeMap<(Arch, String), Vec<Specialisation>> = BTreeMap::new();
    let others = Arch::TESTED.into_iter().filter(|arch| !arch.is_hopper()).count();
    let hopper = Arch::TESTED.into_iter().filter(|arch| arch.is_hopper()).map(|arch| (others, arch));
    let shares = Arch::TESTED.into_iter().filter(|arch| !arch.is_hopper()).enumerate().chain(hopper);
    for (share, arch) in shares {
        let mut forms: BTreeMap<String, usize> = BTreeMap::new();
        for kernel in specialisations(arch) {
            let form = forms.entry(kernel.entry().to_owned()).or_default();
            if arch.is_hopper() || *form == 0 || *form % others == share {
                modules.entry((arch, kernel.module_name())).or_default().push(kernel);
            }
            *form += 1;
        }
    }
    modules.into_iter().map(|((arch, _), kernels)| (arch, kernels)).collect()
}

fn failures(compiler: &Compiler, (arch, kernels): &Module) -> Vec<String> {
    match compiler.module(&kernels[0], *arch) {
        Err(error) => vec![error.to_string()],
        Ok(compiled) => kernels
            .iter()
            .flat_map(|kernel| {
                let found = problems(kernel, *arch, &compiled);
                found.into_iter().map(move |problem| format!("{kernel} for {arch}: {problem}"))
            })
            .collect(),
    }
}

#[test]
fn every_kernel_for_every_architecture() {
    let compiler = match Compiler::new(None) {
        Ok(compiler) => compiler,
        Err(CompileError::NoCompiler) => {
            println!("SKIPPED: libnvrtc is not installed, so no kernel was compiled");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let (modules, next) = (modules(), AtomicUsize::new(0));
    let work = || {
        let mut found = Vec::new();
        while let Some(module) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.extend(failures(&compiler, module));
        }
        found
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("compiling does not panic")).collect()
    });
    let kernels: usize = modules.iter().map(|(_, kernels)| kernels.len()).sum();
    println!("{kernels} kernels in {} modules", modules.len());
    assert!(found.is_empty(), "{} failures:\n{}", found.len(), found.join("\n"));
}
