//! Large aligned buffers: zeroed by the system, on huge pages where available.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use mambo_kernel::BackendError;

/// From this size on memory is mapped directly, in huge pages where available.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Types for which every bit pattern is valid.
pub(crate) trait Plain: Copy + Send + Sync + 'static {}
impl Plain for u8 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// A zeroed, 64-byte aligned array of fixed length.
pub(crate) struct Buffer<T: Plain> {
    ptr: NonNull<T>,
    len: usize,
    origin: Origin,
}

/// How the memory was allocated.
enum Origin {
    Heap(Layout),
    #[cfg(target_os = "linux")]
    Mapping {
        start: *mut libc::c_void,
        bytes: usize,
    },
}

// SAFETY: the buffer owns its memory and `T` is plain data.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: shared access reads only.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// An array of zeros; pages of a large one are allocated when first written.
    pub fn zeroed(len: usize, what: &str) -> Result<Self, BackendError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let found =
            if cfg!(target_os = "linux") && bytes >= HUGE_PAGE_BYTES { map(bytes) } else { heap(bytes) };
        match found {
            Some((ptr, origin)) => Ok(Buffer { ptr: ptr.cast(), len, origin }),
            None => Err(BackendError::OutOfMemory { what: what.to_string(), bytes }),
        }
    }

    /// The first element's address, for `shared.rs`.
    pub fn as_ptr(&self) -> NonNull<T> {
        self.ptr
    }
}

fn heap(bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    let layout = Layout::from_size_align(bytes.max(64), 64).ok()?;
    // SAFETY: the layout's size is not zero.
    let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    Some((ptr, Origin::Heap(layout)))
}

#[cfg(target_os = "linux")]
fn map(bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    // One extra huge page leaves room to align the start.
    let mapped = bytes.checked_add(HUGE_PAGE_BYTES)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let skip = start.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
    // SAFETY: `skip` is less than the extra page.
    let ptr = NonNull::new(unsafe { start.cast::<u8>().add(skip) })?;
    // SAFETY: the range lies in the mapping; the call is advice and changes no contents.
    unsafe { libc::madvise(ptr.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    Some((ptr, Origin::Mapping { start, bytes: mapped }))
}

#[cfg(not(target_os = "linux"))]
fn map(bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    heap(bytes)
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated and zeroed.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated with this layout.
            Origin::Heap(layout) => unsafe { dealloc(self.ptr.as_ptr().cast(), layout) },
            #[cfg(target_os = "linux")]
            // SAFETY: mapped with this start and size, and nothing borrows it any more.
            Origin::Mapping { start, bytes } => unsafe {
                libc::munmap(start, bytes);
            },
        }
    }
}
