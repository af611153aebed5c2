//! mambo in a browser: files whose bytes are fetched as they are needed, a session that answers requests, and the
//! surface that JavaScript sees. Requests and events are JSON; the package in `web/` gives them types.
//!
//! ```text
//!  ranges of bytes ─▶ open ─▶ Session ─▶ step ─▶ events
//!                              ▲ requests
//! ```
//!
//! It must not know pages, caches or the network: those are JavaScript's, behind [`RemoteFile`]. Everything but the
//! surface itself compiles on every machine, and is tested there.

#[cfg(target_family = "wasm")]
mod bindings;
mod error;
#[cfg(target_family = "wasm")]
mod gpu;
mod open;
mod remote_file;
mod request;
mod session;

pub use error::WebError;
pub use open::{OpenEvent, OpenSettings, Opened, load, open};
pub use remote_file::{RemoteError, RemoteFile};
pub use session::Session;
