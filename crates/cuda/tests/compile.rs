//! Every kernel is compiled for every architecture, without a GPU: it must not spill registers or use a stack, and has
//! the tensor-core instructions that it exists for. Needs libnvrtc, where the system finds libraries.

use std::collections::HashMap;

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
    let wanted = match kernel.expects() {
        Expects::Nothing => None,
        Expects::Wgmma if arch.is_hopper() => Some("wgmma.mma_async"),
        Expects::Mma | Expects::Wgmma => Some("mma.sync"),
    };
    if let Some(wanted) = wanted.filter(|wanted| !code.contains(wanted)) {
        problems.push(format!("has no {wanted}"));
    }
    problems
}

fn check(arch: Arch) {
    let compiler = match Compiler::new(None) {
        Ok(compiler) => compiler,
        Err(CompileError::NoCompiler) => {
            println!("SKIPPED: libnvrtc is not installed, so no kernel was compiled for {arch}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut modules: HashMap<String, Compiled> = HashMap::new();
    let (mut failures, kernels) = (Vec::new(), specialisations(arch));
    for kernel in &kernels {
        let name = kernel.module_name();
        if !modules.contains_key(&name) {
            match compiler.module(kernel, arch) {
                Ok(compiled) => drop(modules.insert(name.clone(), compiled)),
                Err(error) => {
                    failures.push(error.to_string());
                    continue;
                }
            }
        }
        let found = problems(kernel, arch, &modules[&name]);
        failures.extend(found.into_iter().map(|problem| format!("{kernel}: {problem}")));
    }
    println!("{arch}: {} kernels in {} modules", kernels.len(), modules.len());
    assert!(failures.is_empty(), "{} failures for {arch}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn ampere() {
    Arch::TESTED.into_iter().filter(|arch| arch.major == 8).for_each(check);
}

#[test]
fn hopper() {
    Arch::TESTED.into_iter().filter(|arch| arch.major == 9).for_each(check);
}

#[test]
fn blackwell() {
    Arch::TESTED.into_iter().filter(|arch| arch.major >= 10).for_each(check);
}
