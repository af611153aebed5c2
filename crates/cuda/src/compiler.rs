//! Kernel sources to machine code: from the archive of a release, from a folder that the caller names, where what was
//! compiled once is kept under a hash of everything it was made of, or by NVRTC, which needs neither a GPU nor a driver.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use crate::arch::Arch;
use crate::archive::{Archive, Key, Writer};
use crate::source::{HEADERS, Specialisation};
use crate::step_table;

/// Why a kernel could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The library is not installed.
    #[error(
        "NVRTC, which compiles kernels, is not installed; install the CUDA toolkit 12.8 or newer, or its libnvrtc \
         alone (`pip install nvidia-cuda-nvrtc`), where the system finds libraries"
    )]
    NoCompiler,
    /// The compiler is missing, and the archive has no such kernel.
    #[error(
        "kernel {module} for {arch} did not come with mambo, and NVRTC, which could compile it, is not installed; \
         install the CUDA toolkit 12.8 or newer, or its libnvrtc alone (`pip install nvidia-cuda-nvrtc`), where the \
         system finds libraries"
    )]
    NotInArchive {
        /// The module.
        module: String,
        /// What it is needed for.
        arch: Arch,
    },
    /// The driver cannot load what the compiler makes.
    #[error(
        "NVRTC is of CUDA {}.{}, but the driver supports only {}.{}; install a newer driver or an older NVRTC",
        .compiler.0, .compiler.1, .driver.0, .driver.1
    )]
    NewCompiler {
        /// Version of the compiler.
        compiler: (i32, i32),
        /// Version that the driver supports.
        driver: (i32, i32),
    },
    /// The compiler refused a kernel.
    #[error("kernel {module} cannot be compiled for {arch}:\n{log}")]
    Failed {
        /// The module.
        module: String,
        /// What it was compiled for.
        arch: Arch,
        /// What the compiler said.
        log: String,
    },
}

/// Machine code of a module with what the compiler said of it.
pub struct Compiled {
    /// Machine code.
    pub cubin: Vec<u8>,
    /// The intermediate code; empty where the machine code came from the folder.
    pub ptx: String,
    /// What the compiler said, with registers, spills and shared memory of every kernel; empty likewise.
    pub log: String,
}

/// Where machine code is looked for before it is compiled.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelFiles<'a> {
    /// A folder where what was compiled is kept.
    pub folder: Option<&'a Path>,
    /// An archive that came with the program; one that does not exist is none.
    pub archive: Option<&'a Path>,
}

/// The compiler.
pub struct Compiler {
    /// The library's version, if it is installed and may be used.
    version: Option<(i32, i32)>,
    folder: Option<PathBuf>,
    archive: Option<Archive>,
    /// What the user should know of the archive.
    note: Option<String>,
}

impl Compiler {
    /// The compiler alone. Machine code is kept in `folder`, if there is one.
    pub fn new(folder: Option<&Path>) -> Result<Compiler, CompileError> {
        Compiler::with(KernelFiles { folder, archive: None }, None)
    }

    /// Looks for the library and opens the archive; one of them must be there. Both are only used as far as a driver of
    /// this CUDA version, if it is given, can load what they make.
    pub fn with(files: KernelFiles, driver: Option<(i32, i32)>) -> Result<Compiler, CompileError> {
        let (mut archive, mut note) = (None, None);
        if let Some(path) = files.archive.filter(|path| path.exists()) {
            match Archive::open(path)
                .map_err(|error| error.to_string())
                .and_then(|open| loadable(open, driver))
            {
                Ok(open) if open.sources != sources_digest() => {
                    note = Some(format!(
                        "{} belongs to another version of mambo; kernels that differ are compiled, and its own would \
                         save that",
                        path.display()
                    ));
                    archive = Some(open);
                }
                Ok(open) => archive = Some(open),
                Err(problem) => {
                    note =
                        Some(format!("{} is not used, and kernels are compiled: {problem}", path.display()));
                }
            }
        }
        let version = match installed_version() {
            Some(compiler) => match driver.filter(|driver| compiler.0 > driver.0) {
                // What it makes could not be loaded.
                Some(driver) if archive.is_none() => {
                    return Err(CompileError::NewCompiler { compiler, driver });
                }
                Some(_) => None,
                None => Some(compiler),
            },
            None if archive.is_none() => return Err(CompileError::NoCompiler),
            None => None,
        };
        Ok(Compiler { version, folder: files.folder.map(Path::to_owned), archive, note })
    }

    /// The library's version, if it is there.
    pub fn version(&self) -> Option<(i32, i32)> {
        self.version
    }

    /// What the user should know: an archive that is not used, or not all of it.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The module that a kernel is part of: from the archive, from the folder or compiled.
    pub fn module(&self, kernel: &Specialisation, arch: Arch) -> Result<Compiled, CompileError> {
        let text = kernel.source.full_text();
        let ready = |cubin| Compiled { cubin, ptx: String::new(), log: String::new() };
        if let Some(archive) = &self.archive {
            let mut candidates = arch.loads_code_of().map(|arch| digest(&text, &options(kernel, arch)));
            if let Some(cubin) = candidates.find_map(|key| archive.module(&key)) {
                return Ok(ready(cubin));
            }
        }
        let Some(version) = self.version else {
            return Err(CompileError::NotInArchive { module: kernel.module_name(), arch });
        };
        let options = options(kernel, arch);
        let path =
            self.folder.as_ref().map(|folder| folder.join(file_name(kernel, version, &text, &options)));
        if let Some(cubin) =
            path.as_ref().and_then(|path| fs::read(path).ok()).filter(|bytes| !bytes.is_empty())
        {
            return Ok(ready(cubin));
        }
        self.compile_to(kernel, arch, &text, &options, path.as_deref())
    }

    /// The module compiled anew, whatever lies in the archive or the folder: what lay there cannot be loaded.
    pub fn compiled_anew(&self, kernel: &Specialisation, arch: Arch) -> Result<Compiled, CompileError> {
        let Some(version) = self.version else {
            return Err(CompileError::NotInArchive { module: kernel.module_name(), arch });
        };
        let (text, options) = (kernel.source.full_text(), options(kernel, arch));
        let path =
            self.folder.as_ref().map(|folder| folder.join(file_name(kernel, version, &text, &options)));
        self.compile_to(kernel, arch, &text, &options, path.as_deref())
    }

    fn compile_to(
        &self,
        kernel: &Specialisation,
        arch: Arch,
        text: &str,
        options: &[String],
        path: Option<&Path>,
    ) -> Result<Compiled, CompileError> {
        let compiled = compile(&kernel.module_name(), text, options).map_err(|log| CompileError::Failed {
            module: kernel.module_name(),
            arch,
            log,
        })?;
        if let Some(path) = path {
            // Without the copy the next start compiles again, which is no reason to fail.
            let _ = keep(path, &compiled.cubin);
        }
        Ok(compiled)
    }
}

/// Whether a driver can load what an archive holds.
fn loadable(archive: Archive, driver: Option<(i32, i32)>) -> Result<Archive, String> {
    match driver.filter(|driver| archive.compiler.0 > driver.0) {
        Some(driver) => Err(format!(
            "it was made by CUDA {}.{}, but the driver supports only {}.{}",
            archive.compiler.0, archive.compiler.1, driver.0, driver.1
        )),
        None => Ok(archive),
    }
}

/// The version of the library, if it is installed.
fn installed_version() -> Option<(i32, i32)> {
    // SAFETY: asks the system for the library, whose initialisers have no requirements.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let mut version = (0, 0);
    // SAFETY: both point to numbers.
    let result = unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) };
    (result == sys::nvrtcResult::NVRTC_SUCCESS).then_some(version)
}

/// A digest of parts that cannot be mistaken for one another.
fn digest_of<'p>(parts: impl IntoIterator<Item = &'p str>) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// A digest of everything that a module is made of, but for the compiler.
fn digest(text: &str, options: &[String]) -> Key {
    let generated = step_table::c_text();
    let headers = HEADERS.iter().map(|(_, text)| *text);
    digest_of(headers.chain([generated.as_str(), text]).chain(options.iter().map(String::as_str)))
}

/// A digest of all sources.
fn sources_digest() -> Key {
    let texts: BTreeSet<String> = Arch::TESTED
        .iter()
        .flat_map(|arch| crate::specialisations(*arch))
        .map(|kernel| kernel.source.full_text())
        .collect();
    let generated = step_table::c_text();
    let headers = HEADERS.iter().map(|(_, text)| *text);
    digest_of(headers.chain([generated.as_str()]).chain(texts.iter().map(String::as_str)))
}

/// A name that changes with everything that the machine code depends on.
fn file_name(kernel: &Specialisation, version: (i32, i32), text: &str, options: &[String]) -> String {
    let mut hash = Sha256::new();
    hash.update(digest(text, options));
    hash.update(version.0.to_le_bytes());
    hash.update(version.1.to_le_bytes());
    let mut name = format!("{}-", kernel.source.stem);
    for byte in &hash.finalize()[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name + ".cubin"
}

/// Compiles what a release carries for these architectures, as far as it `is_wanted`, into an archive. `progress` is told
/// what was compiled and how much there is, by any thread.
pub fn write_archive(
    compiler: &Compiler,
    archs: &[Arch],
    is_wanted: &dyn Fn(&Specialisation) -> bool,
    to: &mut dyn io::Write,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<(), ArchiveError> {
    let version = compiler.version().ok_or(CompileError::NoCompiler)?;
    let mut modules: BTreeMap<(Arch, String), Specialisation> = BTreeMap::new();
    for &arch in archs {
        for kernel in crate::shipped(arch).into_iter().filter(is_wanted) {
            modules.entry((arch, kernel.module_name())).or_insert(kernel);
        }
    }
    let modules: Vec<(Arch, Specialisation)> =
        modules.into_iter().map(|((arch, _), kernel)| (arch, kernel)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut made = Vec::new();
        while let Some((arch, kernel)) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
            let cubin = compiler.module(kernel, *arch)?.cubin;
            let key = digest(&kernel.source.full_text(), &options(kernel, *arch));
            made.push((key, cubin.len(), Writer::compress(&cubin)));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, modules.len());
        }
        Ok::<_, CompileError>(made)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("compiling does not panic")).collect()
    });
    let mut writer = Writer::new(version, sources_digest());
    for result in results {
        result?.into_iter().for_each(|(key, whole, compressed)| writer.add(key, whole, compressed));
    }
    Ok(writer.write(to)?)
}

/// Why an archive could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// A kernel cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The file cannot be written.
    #[error("cannot write the archive: {0}")]
    Write(#[from] io::Error),
}

/// Writes a file under another name first, so that another process never reads half of it.
fn keep(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    fs::write(&partial, bytes)?;
    fs::rename(&partial, path)
}

fn options(kernel: &Specialisation, arch: Arch) -> Vec<String> {
    let mut options: Vec<String> =
        [format!("--gpu-architecture={arch}"), "--std=c++17".into(), "--ptxas-options=-v".into()].into();
    options.extend(kernel.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    options
}

/// A program of the library, destroyed when dropped.
struct NvrtcProgram(sys::nvrtcProgram);

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// Compiles a text; the error is what the compiler said.
fn compile(name: &str, text: &str, options: &[String]) -> Result<Compiled, String> {
    let c_string = |text: &str| CString::new(text).map_err(|_| format!("`{name}` holds a zero byte"));
    let generated = step_table::c_text();
    let mut headers = vec![c_string(&generated)?];
    let mut names = vec![c_string("step.cuh")?];
    for (header, text) in HEADERS {
        headers.push(c_string(text)?);
        names.push(c_string(header)?);
    }
    let pointers = |strings: &[CString]| strings.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let (text, title) = (c_string(text)?, c_string(&format!("{name}.cu"))?);
    let mut program = NvrtcProgram(ptr::null_mut());
    // SAFETY: every pointer is to a C string that lives longer than the call, and the counts are theirs.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &mut program.0,
            text.as_ptr(),
            title.as_ptr(),
            headers.len() as i32,
            pointers(&headers).as_ptr(),
            pointers(&names).as_ptr(),
        )
    };
    if created != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(reason(created));
    }
    let options = options.iter().map(|option| c_string(option)).collect::<Result<Vec<_>, _>>()?;
    // SAFETY: the program was created, and the options are C strings that live longer than the call.
    let result =
        unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, pointers(&options).as_ptr()) };
    let log = text_of(&read(program.0, sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog)?);
    if result != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(format!("{}\n{log}", reason(result)));
    }
    let cubin = read(program.0, sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)?;
    let ptx = text_of(&read(program.0, sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)?);
    Ok(Compiled { cubin, ptx, log })
}

type SizeOf = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
type Get = unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult;

/// Reads one of a program's results.
fn read(program: sys::nvrtcProgram, size_of: SizeOf, get: Get) -> Result<Vec<u8>, String> {
    let mut size = 0;
    // SAFETY: the program was created.
    let result = unsafe { size_of(program, &mut size) };
    if result != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(reason(result));
    }
    let mut bytes = vec![0u8; size];
    // SAFETY: the room is as large as the library says the result is.
    let result = unsafe { get(program, bytes.as_mut_ptr().cast()) };
    if result != sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(reason(result));
    }
    Ok(bytes)
}

/// A C string in a buffer.
fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn reason(result: sys::nvrtcResult) -> String {
    // SAFETY: the library gives a static string for every result.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    text.to_string_lossy().into_owned()
}
