//! An output file that appears complete or not at all: written beside its final path, renamed at the end.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::CheckpointError;

/// Writes to `<path>.<n>.partial`; [`AtomicFile::finish`] renames, dropping it earlier removes the partial file.
pub struct AtomicFile {
    path: PathBuf,
    partial: PathBuf,
    file: Option<BufWriter<File>>,
}

impl AtomicFile {
    /// Starts a file that will be at `path`.
    pub fn create(path: &Path) -> Result<AtomicFile, CheckpointError> {
        let path = &target(path)?;
        let (partial, file) = create_partial(path).map_err(CheckpointError::io("write", path))?;
        Ok(AtomicFile {
            path: path.to_path_buf(),
            partial,
            file: Some(BufWriter::with_capacity(1 << 20, file)),
        })
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the unfinished file is.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Writes from a byte on, so that several parts may grow at once.
    pub fn write_at(&mut self, first: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        match &mut self.file {
            Some(file) => file
                .seek(SeekFrom::Start(first))
                .and_then(|_| file.write_all(bytes))
                .map_err(CheckpointError::io("write", &self.path)),
            None => Ok(()),
        }
    }

    /// Adds bytes at the end.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        match &mut self.file {
            Some(file) => file.write_all(bytes).map_err(CheckpointError::io("write", &self.path)),
            None => Ok(()),
        }
    }

    /// Puts the file, safe on disk, in its place.
    pub fn finish(mut self) -> Result<(), CheckpointError> {
        let failed = CheckpointError::io("write", &self.path);
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let done = file
            .flush()
            .and_then(|()| file.get_ref().sync_all())
            .and_then(|()| fs::rename(&self.partial, &self.path));
        if done.is_err() {
            let _ = fs::remove_file(&self.partial);
        }
        done.map_err(failed)
    }
}

/// The regular file that is to appear: where a link points to, and never a folder or a device, which a
/// rename would replace.
fn target(path: &Path) -> Result<PathBuf, CheckpointError> {
    let refuse = |what: &str| {
        let problem = format!("cannot be written because it is {what}; give the name of a file");
        Err(CheckpointError::Write { path: path.to_path_buf(), problem })
    };
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => refuse("a folder"),
        Ok(found) if !found.is_file() => refuse("a device or a pipe"),
        Ok(_) => fs::canonicalize(path).map_err(CheckpointError::io("write", path)),
        Err(_) if fs::symlink_metadata(path).is_ok() => refuse("a link to nothing"),
        Err(_) => Ok(path.to_path_buf()),
    }
}

/// A file nobody else writes to, beside its final path: the first number that no other writer has taken, because
/// creating fails where there is a file already.
fn create_partial(path: &Path) -> io::Result<(PathBuf, File)> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for n in 0..1000 {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}.partial"));
        let partial = PathBuf::from(name);
        match File::create_new(&partial) {
            Ok(file) => return Ok((partial, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // What is still buffered belongs to a file that is about to go.
            drop(file.into_parts());
            let _ = fs::remove_file(&self.partial);
        }
    }
}
