//! `cargo xtask web`: the browser package, and the static site made of it and of the server's page.
//!
//! ```text
//! crates/web ─cargo─▶ wasm ─web/bindgen─▶ web/dist ◀─tsc─ web/src
//! web/dist, crates/server/page, web/site, the built-in model ─▶ target/web/site
//! web/dist ─npm pack─▶ target/web/*.tgz
//! ```

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const TARGET: &str = "wasm32-unknown-unknown";
/// Vectors of 128 bits, which every browser has had for years.
const RUSTFLAGS: &str = r#"target.wasm32-unknown-unknown.rustflags=["-Ctarget-feature=+simd128"]"#;

/// Files of the server's page that the site does without: `api.js` has a twin there, and there is no API to describe.
const NOT_IN_SITE: [&str; 4] = ["api.js", "docs.css", "docs.html", "docs.js"];
/// Where the site's own head stands in the server's page.
const HEAD_END: &str = "</head>";
const SITE_HEAD: &str = concat!(
    "  <link rel=\"manifest\" href=\"manifest.webmanifest\">\n",
    "  <link rel=\"stylesheet\" href=\"tab.css\">\n",
    "  <script type=\"module\" src=\"tab.js\"></script>\n",
);
const MODEL: &str = "crates/cli/assets/tiny-hybrid.gguf";

/// Builds all of it.
pub fn build(root: &Path) -> Result<()> {
    core(root)?;
    package(root)?;
    site(root)?;
    sizes(root)
}

fn run(command: &mut Command, remedy: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}; {remedy}"))?;
    ensure!(status.success(), "{command:?} failed; {remedy}");
    Ok(())
}

/// The wasm module and the JavaScript around it.
fn core(root: &Path) -> Result<()> {
    let target = root.join("target/wasm");
    let mut build = Command::new("cargo");
    build.current_dir(root).args(["build", "--locked", "--profile", "web", "--package", "mambo-web"]);
    build.args(["--target", TARGET, "--config", RUSTFLAGS, "--target-dir"]).arg(&target);
    run(&mut build, "`rustup target add wasm32-unknown-unknown` brings the target")?;
    let module = target.join(TARGET).join("web/mambo_web.wasm");
    let folder = root.join("web/dist/core");
    std::fs::create_dir_all(&folder)?;
    let mut bindgen = Command::new("cargo");
    bindgen.current_dir(root).args(["run", "--quiet", "--release", "--locked", "--manifest-path"]);
    bindgen.arg("web/bindgen/Cargo.toml").arg("--target-dir").arg(root.join("target/bindgen"));
    bindgen.arg("--").arg(&module).arg(&folder);
    run(&mut bindgen, "its version of wasm-bindgen must be the one in Cargo.lock: see web/bindgen/Cargo.toml")
}

/// TypeScript to JavaScript, all of it packed as npm takes it.
fn package(root: &Path) -> Result<()> {
    let web = root.join("web");
    let remedy = "Node 20.19 or newer with npm is needed";
    if !web.join("node_modules/typescript").is_dir() {
        run(Command::new("npm").current_dir(&web).args(["ci", "--no-audit", "--no-fund"]), remedy)?;
    }
    let compiler = web.join("node_modules/typescript/bin/tsc");
    run(Command::new("node").current_dir(&web).arg(compiler).args(["--project", "."]), remedy)?;
    let packed = root.join("target/web");
    std::fs::create_dir_all(&packed)?;
    run(
        Command::new("npm").current_dir(&web).args(["pack", "--silent", "--pack-destination"]).arg(&packed),
        remedy,
    )
}

/// The static site.
fn site(root: &Path) -> Result<()> {
    let site = root.join("target/web/site");
    if site.exists() {
        std::fs::remove_dir_all(&site)?;
    }
    std::fs::create_dir_all(&site)?;
    copy_files(&root.join("crates/server/page"), &site, &|name| !NOT_IN_SITE.contains(&name))?;
    copy_files(&root.join("web/site"), &site, &|_| true)?;
    copy_tree(&root.join("web/dist"), &site.join("mambo"))?;
    let index = site.join("index.html");
    let html = std::fs::read_to_string(&index)?;
    ensure!(html.contains(HEAD_END), "{} has no {HEAD_END}", index.display());
    std::fs::write(&index, html.replacen(HEAD_END, &format!("{SITE_HEAD}{HEAD_END}"), 1))?;
    service_worker(&site)?;
    // Not among the service worker's files: the engine stores models itself.
    std::fs::copy(root.join(MODEL), site.join("tiny-hybrid.gguf"))?;
    beside_program(root, &site)
}

/// Puts the site where `mambo serve` looks for it, if the program has been built.
fn beside_program(root: &Path, site: &Path) -> Result<()> {
    let release = root.join("target/release");
    if !release.is_dir() {
        return Ok(());
    }
    // A server that starts meanwhile finds all of it or nothing.
    let (local, partial) = (release.join("local"), release.join("local.partial"));
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    let mut files = BTreeMap::new();
    list(site, "", &mut files)?;
    for (name, bytes) in files {
        let path = partial.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&partial))?;
        std::fs::write(path, bytes)?;
    }
    if local.exists() {
        std::fs::remove_dir_all(&local)?;
    }
    Ok(std::fs::rename(&partial, &local)?)
}

/// Tells the service worker which files there are, and a version that changes with them.
fn service_worker(site: &Path) -> Result<()> {
    let mut files = BTreeMap::new();
    list(site, "", &mut files)?;
    let script = site.join("service-worker.js");
    let text = std::fs::read_to_string(&script)?;
    files.remove("service-worker.js");
    let mut version = DefaultHasher::new();
    files.hash(&mut version);
    text.hash(&mut version);
    let names: Vec<String> = files.keys().map(|name| format!("\"{name}\"")).collect();
    let (marks, list) = (["/* files */ []", "/* version */"], format!("[{}]", names.join(", ")));
    if let Some(mark) = marks.iter().find(|mark| !text.contains(**mark)) {
        bail!("{} has no {mark}", script.display());
    }
    let text = text.replace(marks[0], &list).replace(marks[1], &format!("{:016x}", version.finish()));
    Ok(std::fs::write(script, text)?)
}

/// Every file below a folder with its bytes, by its path.
fn list(folder: &Path, prefix: &str, into: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
        match path.is_dir() {
            true => list(&path, &format!("{name}/"), into)?,
            false => drop(into.insert(name, std::fs::read(&path)?)),
        }
    }
    Ok(())
}

fn copy_files(from: &Path, into: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && wanted(&name) {
            std::fs::copy(&path, into.join(name))?;
        }
    }
    Ok(())
}

/// What runs of the package: types stay behind.
fn copy_tree(from: &Path, into: &Path) -> Result<()> {
    std::fs::create_dir_all(into)?;
    copy_files(from, into, &|name| name.ends_with(".js") || name.ends_with(".wasm"))?;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        if path.is_dir() {
            copy_tree(&path, &into.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// What a visitor downloads.
fn sizes(root: &Path) -> Result<()> {
    let script = "const zlib = require('node:zlib'); const bytes = require('node:fs').readFileSync(process.argv[1]);
        const mb = (n) => (n / 1e6).toFixed(2) + ' MB';
        console.log(`core: ${mb(bytes.length)} of wasm, ${mb(zlib.gzipSync(bytes).length)} with gzip, ${mb(zlib.brotliCompressSync(bytes).length)} with brotli`);";
    let module = root.join("web/dist/core/core_bg.wasm");
    run(Command::new("node").arg("-e").arg(script).arg(module), "Node is needed")?;
    println!("site: {}", root.join("target/web/site").display());
    Ok(())
}
