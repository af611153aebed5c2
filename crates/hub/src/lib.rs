//! Models of the Hugging Face hub: which files of a repository are needed, how they come into the local cache, and
//! what is there already.
//!
//! ```text
//! Reference ──Hub::listing──▶ Listing ──choices, pick──▶ Choice ──Hub::plan──▶ Plan ──Hub::pull──▶ a path to open
//!     │                                                    └───Hub::open_headers──▶ Checkpoint, nothing downloaded
//!     └──Cache::find──▶ a path to open, without a network
//! ```
//!
//! The cache has the layout of the hub's own tools, so that a model is downloaded once for all of them, and its locks
//! and unfinished files are theirs too. Nothing here prints, asks, or reads the environment; every step reports to a
//! callback, which may end it. Knows file names and bytes, and formats only as far as their names tell.

mod cache;
mod checksum;
mod choice;
mod client;
mod download;
mod error;
mod events;
pub mod fuzzing;
mod headers;
mod hub;
mod listing;
mod lock;
mod partial;
mod reference;
mod removal;

pub use cache::{Cache, Cached, Found};
pub use choice::{Choice, Weights, choices, pick, usual};
pub use error::HubError;
pub use events::PullEvent;
pub use hub::{Hub, HubOptions, Plan, PlannedFile};
pub use listing::{Listing, RemoteFile};
pub use reference::{Reference, RepoId};
pub use removal::Removal;
