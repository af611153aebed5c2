//! Loaded machine code, and launching it. Every launch of the backend goes through here.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use mambo_kernel::BackendError;

use crate::arch::Arch;
use crate::compiler::{CompileError, Compiled, Compiler};
use crate::driver::{BACKEND, Context, Stream, check};
use crate::launch::Launch;
use crate::source::Specialisation;

/// Shared memory that a kernel has without asking.
const PLAIN_SHARED_BYTES: u32 = 16 << 10;

/// Percent of the memory that a multiprocessor divides between shared memory and cache.
const ALL_SHARED: i32 = 100;

/// A module on the device, unloaded when dropped.
struct Module {
    raw: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was loaded and is unloaded once.
            unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel that can be launched.
#[derive(Clone, Copy)]
struct Function {
    raw: sys::CUfunction,
    /// Dynamic shared memory it may have.
    shared_bytes: u32,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Function {}

/// Everything that was loaded.
pub(crate) struct Modules {
    context: Arc<Context>,
    compiler: Compiler,
    arch: Arch,
    modules: HashMap<String, Module>,
    functions: HashMap<(String, &'static str), Function>,
}

impl Modules {
    pub fn new(context: &Arc<Context>, arch: Arch, compiler: Compiler) -> Modules {
        let context = Arc::clone(context);
        Modules { context, compiler, arch, modules: HashMap::new(), functions: HashMap::new() }
    }

    /// Compiles and loads what launches need and is not there yet; several modules at once.
    pub fn prepare<'l>(&mut self, launches: impl Iterator<Item = &'l Launch>) -> Result<(), BackendError> {
        let mut missing: HashMap<String, &Specialisation> = HashMap::new();
        for launch in launches.filter(|launch| !launch.is_empty()) {
            let name = launch.kernel.module_name();
            if !self.modules.contains_key(&name) {
                missing.insert(name, &launch.kernel);
            }
        }
        let missing: Vec<(String, &Specialisation)> = missing.into_iter().collect();
        for (name, compiled) in self.compile(&missing)? {
            let module = match self.load(&name, &compiled.cubin)? {
                Some(module) => module,
                // A file that was damaged, or that another driver wrote: it is made anew, once.
                None => self.load_anew(&name, missing_kernel(&missing, &name))?,
            };
            self.modules.insert(name, module);
        }
        Ok(())
    }

    fn load_anew(&self, name: &str, kernel: &Specialisation) -> Result<Module, BackendError> {
        let compiled =
            self.compiler.compiled_anew(kernel, self.arch).map_err(|error| compile_error(&error))?;
        self.load(name, &compiled.cubin)?.ok_or_else(|| BackendError::Device {
            backend: BACKEND.into(),
            what: format!("loading kernel {name}"),
            reason: format!("the driver cannot load code for {}; install driver 570 or newer", self.arch),
        })
    }

    /// What the user should know of how kernels are found.
    pub fn note(&self) -> Option<&str> {
        self.compiler.note()
    }

    fn compile(
        &self,
        missing: &[(String, &Specialisation)],
    ) -> Result<Vec<(String, Compiled)>, BackendError> {
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let compiler = &self.compiler;
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(missing.len());
        let share = missing.len().div_ceil(threads);
        let arch = self.arch;
        let compile_share = |share: &[(String, &Specialisation)]| {
            let compile = |(name, kernel): &(String, &Specialisation)| {
                Ok((name.clone(), compiler.module(kernel, arch)?))
            };
            share.iter().map(compile).collect::<Result<Vec<_>, CompileError>>()
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> =
                missing.chunks(share).map(|share| scope.spawn(move || compile_share(share))).collect();
            workers.into_iter().map(|worker| worker.join().expect("compiling does not panic")).collect()
        });
        let mut compiled = Vec::new();
        for result in results {
            compiled.extend(result.map_err(|error| compile_error(&error))?);
        }
        Ok(compiled)
    }

    /// Loads machine code; none where the driver says that it is none, or not for this GPU.
    fn load(&self, name: &str, cubin: &[u8]) -> Result<Option<Module>, BackendError> {
        use sys::CUresult::{
            CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_SOURCE, CUDA_ERROR_NO_BINARY_FOR_GPU,
        };
        self.context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the machine code is as long as its headers say: the compiler made it, files are written before they
        // get their name, and archives hold a checksum.
        let result = unsafe { sys::cuModuleLoadData(&mut raw, cubin.as_ptr().cast()) };
        if matches!(
            result,
            CUDA_ERROR_INVALID_IMAGE | CUDA_ERROR_INVALID_SOURCE | CUDA_ERROR_NO_BINARY_FOR_GPU
        ) {
            return Ok(None);
        }
        check(result, &format!("loading kernel {name}"))?;
        Ok(Some(Module { raw, context: Arc::clone(&self.context) }))
    }

    fn function(&mut self, kernel: &Specialisation, shared_bytes: u32) -> Result<Function, BackendError> {
        let key = (kernel.module_name(), kernel.entry);
        let known = self.functions.get(&key).copied();
        let mut function = match known {
            Some(function) => function,
            None => {
                let module =
                    self.modules.get(&key.0).expect("modules are prepared before kernels are launched");
                let entry = CString::new(kernel.entry).expect("names of kernels are words");
                let mut raw = ptr::null_mut();
                // SAFETY: the module is loaded and the name a C string.
                let result = unsafe { sys::cuModuleGetFunction(&mut raw, module.raw, entry.as_ptr()) };
                check(result, &format!("looking for {kernel}"))?;
                // All kernels ask for the same division between shared memory and cache: a multiprocessor that has to
                // change its own must be empty first, so that no kernel could begin beside the one before it.
                let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                // SAFETY: the function is loaded.
                let result = unsafe { sys::cuFuncSetAttribute(raw, attribute, ALL_SHARED) };
                check(result, &format!("giving {kernel} shared memory"))?;
                Function { raw, shared_bytes: PLAIN_SHARED_BYTES }
            }
        };
        if shared_bytes > function.shared_bytes {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is loaded.
            let result = unsafe { sys::cuFuncSetAttribute(function.raw, attribute, shared_bytes as i32) };
            check(result, &format!("giving {kernel} {shared_bytes} bytes of shared memory"))?;
            function.shared_bytes = shared_bytes;
        }
        self.functions.insert(key, function);
        Ok(function)
    }

    /// Makes sure that a launch whose module was prepared only has to be queued.
    pub fn find(&mut self, launch: &Launch) -> Result<(), BackendError> {
        if launch.is_empty() { Ok(()) } else { self.function(&launch.kernel, launch.shared_bytes).map(drop) }
    }

    /// Queues a launch whose module was prepared. It may start before what was queued before it has ended, up to its
    /// own wait, if `overlapping`.
    pub fn launch(
        &mut self,
        launch: &Launch,
        stream: &Stream,
        overlapping: bool,
    ) -> Result<(), BackendError> {
        if launch.is_empty() {
            return Ok(());
        }
        let function = self.function(&launch.kernel, launch.shared_bytes)?;
        let mut attributes = Vec::with_capacity(1);
        if overlapping && self.arch.has_dependent_launch() {
            attributes.push(attribute(
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            ));
        }
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            hStream: stream.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut arguments = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: every kernel takes one struct, whose definition in C is made from the one that these bytes were
        // copied from (`c_struct!`); the driver copies them before it returns. What its pointers lead to was checked
        // when the program and the step were.
        let result =
            unsafe { sys::cuLaunchKernelEx(&config, function.raw, arguments.as_mut_ptr(), ptr::null_mut()) };
        check(result, &format!("launching {}", launch.kernel))
    }
}

/// The kernel whose module has this name.
fn missing_kernel<'l>(missing: &[(String, &'l Specialisation)], name: &str) -> &'l Specialisation {
    let found = missing.iter().find(|(own, _)| own == name);
    found.expect("only what is missing was compiled").1
}

fn attribute(id: sys::CUlaunchAttributeID, value: sys::CUlaunchAttributeValue) -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute { id, pad: [0; 4], value }
}

fn compile_error(error: &CompileError) -> BackendError {
    BackendError::Device {
        backend: BACKEND.into(),
        what: "compiling kernels".into(),
        reason: error.to_string(),
    }
}
