//! Writes models: any open one as a GGUF file or a safetensors folder, quantised or not, or one with random
//! weights; in one pass and with little memory.
//!
//! ```no_run
//! # use mambo_convert::{Container, Output, Recipe, convert};
//! # use mambo_runtime::{Model, OpenOptions};
//! let model = Model::open("models/tiny-hybrid", &OpenOptions::default())?;
//! let recipe = Recipe::named("q4_mix", Container::Gguf)?;
//! let output = Output { path: "tiny.gguf".as_ref(), replace: false, threads: 4 };
//! convert(&model, &recipe, None, output, &mut |_| std::ops::ControlFlow::Continue(()))?;
//! # Ok::<(), mambo_convert::ConvertError>(())
//! ```
//!
//! A [`Recipe`] says how each tensor is stored, a [`Source`] has the rows; [`write_gguf`] and [`write_folder`]
//! stream them to disk. Nothing here prints; progress goes to a callback, which may stop the work.

mod calibration;
mod container;
mod conversion;
mod convert;
mod disk_space;
mod error;
mod folder;
mod importance;
mod metadata;
mod mixes;
mod pattern;
mod planned;
mod recipe;
mod stream;
pub mod synth;
mod vocabulary;

pub use calibration::Calibration;
pub use container::Container;
pub use conversion::{Converted, Output, Progress, Source, convert, write_gguf};
pub use convert::{Converter, SquaredError};
pub use error::ConvertError;
pub use folder::write_folder;
pub use importance::Importance;
pub use planned::{Content, Layout, Planned};
pub use recipe::{Recipe, types};
pub use synth::Synth;
