//! One launch of a kernel: which, with what, how large.

use std::mem::MaybeUninit;

use crate::params::CStruct;
use crate::source::Specialisation;

/// Room for parameters, aligned for every struct that kernels take.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    _bytes: [MaybeUninit<u8>; 64],
}

/// The bytes of a kernel's parameter struct.
#[derive(Clone)]
pub(crate) struct ParamBytes(Vec<Line>);

impl ParamBytes {
    #[allow(unsafe_code)]
    fn of<T: CStruct>(params: &T) -> ParamBytes {
        let lines = size_of::<T>().div_ceil(size_of::<Line>());
        let mut room = vec![Line { _bytes: [MaybeUninit::uninit(); 64] }; lines];
        assert!(align_of::<T>() <= align_of::<Line>());
        // SAFETY: the room is as large as the struct, which is copied with its padding and never read as anything
        // else but bytes that may be uninitialised.
        unsafe { std::ptr::copy_nonoverlapping(params, room.as_mut_ptr().cast::<T>(), 1) };
        ParamBytes(room)
    }

    /// Where they are.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

/// A launch.
#[derive(Clone)]
pub(crate) struct Launch {
    pub kernel: Specialisation,
    pub params: ParamBytes,
    /// Blocks; a launch without any is left out.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Launch {
    /// One block of one warp.
    pub fn new<T: CStruct>(kernel: Specialisation, params: &T) -> Launch {
        let params = ParamBytes::of(params);
        Launch { kernel, params, grid: [1; 3], block: [32, 1, 1], shared_bytes: 0 }
    }

    /// The same with so many blocks.
    pub fn grid(self, grid: [u32; 3]) -> Launch {
        Launch { grid, ..self }
    }

    /// The same with so many threads a block.
    pub fn block(self, threads: u32) -> Launch {
        Launch { block: [threads, 1, 1], ..self }
    }

    /// The same with dynamic shared memory.
    pub fn shared(self, shared_bytes: u32) -> Launch {
        Launch { shared_bytes, ..self }
    }

    /// Whether anything is to be run.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}
