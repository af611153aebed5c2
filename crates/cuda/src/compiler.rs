//! NVRTC: kernel sources to machine code. What was compiled once is kept in a folder that the caller names, under a
//! hash of everything it was made of. Needs the library, but neither a GPU nor a driver.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use crate::arch::Arch;
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

/// The compiler.
pub struct Compiler {
    version: (i32, i32),
    folder: Option<PathBuf>,
}

impl Compiler {
    /// Looks for the library. Machine code is kept in `folder`, if there is one.
    pub fn new(folder: Option<&Path>) -> Result<Compiler, CompileError> {
        // SAFETY: asks the system for the library, whose initialisers have no requirements.
        if !unsafe { sys::is_culib_present() } {
            return Err(CompileError::NoCompiler);
        }
        let mut version = (0, 0);
        // SAFETY: both point to numbers.
        let result = unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) };
        if result != sys::nvrtcResult::NVRTC_SUCCESS {
            return Err(CompileError::NoCompiler);
        }
        Ok(Compiler { version, folder: folder.map(Path::to_owned) })
    }

    /// The library's version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The module that a kernel is part of, from the folder or compiled.
    pub fn module(&self, kernel: &Specialisation, arch: Arch) -> Result<Compiled, CompileError> {
        let (text, options) = (kernel.source.full_text(), options(kernel, arch));
        let path = self.folder.as_ref().map(|folder| folder.join(self.file_name(kernel, &text, &options)));
        if let Some(cubin) =
            path.as_ref().and_then(|path| fs::read(path).ok()).filter(|bytes| !bytes.is_empty())
        {
            return Ok(Compiled { cubin, ptx: String::new(), log: String::new() });
        }
        let compiled = compile(&kernel.module_name(), &text, &options)
            .map_err(|log| CompileError::Failed { module: kernel.module_name(), arch, log })?;
        if let Some(path) = path {
            // Without the copy the next start compiles again, which is no reason to fail.
            let _ = keep(&path, &compiled.cubin);
        }
        Ok(compiled)
    }

    /// A name that changes with everything that the machine code depends on.
    fn file_name(&self, kernel: &Specialisation, text: &str, options: &[String]) -> String {
        let mut hash = Sha256::new();
        let generated = step_table::c_text();
        let headers = HEADERS.iter().map(|(_, text)| *text);
        let options = options.iter().map(String::as_str);
        for part in headers.chain([generated.as_str(), text]).chain(options) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(self.version.0.to_le_bytes());
        hash.update(self.version.1.to_le_bytes());
        let mut name = format!("{}-", kernel.source.stem);
        for byte in &hash.finalize()[..16] {
            let _ = write!(name, "{byte:02x}");
        }
        name + ".cubin"
    }
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
