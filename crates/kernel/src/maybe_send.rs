//! `Send` where there are threads. In a browser a device belongs to the thread that opened it, and cannot be sent.

/// What can move to another thread, on targets that have threads.
#[cfg(not(target_family = "wasm"))]
pub trait MaybeSend: Send {}

#[cfg(not(target_family = "wasm"))]
impl<T: Send + ?Sized> MaybeSend for T {}

/// What can move to another thread, on targets that have threads.
#[cfg(target_family = "wasm")]
pub trait MaybeSend {}

#[cfg(target_family = "wasm")]
impl<T: ?Sized> MaybeSend for T {}
