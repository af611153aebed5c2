//! Files that a person writes: settings and keys. A device that never ends, or a model given by mistake, is refused
//! instead of read.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Most bytes of such a file.
const MOST: u64 = 1 << 20;

/// The text of a file.
pub fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let bytes = File::open(path)?.take(MOST + 1).read_to_string(&mut text)?;
    if bytes as u64 > MOST {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {} MiB", MOST >> 20)));
    }
    Ok(text)
}
