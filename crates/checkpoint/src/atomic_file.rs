//! An output file that appears complete or not at all: written beside its place, renamed at the end.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::CheckpointError;

/// Writes to `<path>.partial`; [`AtomicFile::finish`] renames, dropping it earlier removes the partial file.
pub(crate) struct AtomicFile {
    path: PathBuf,
    partial: PathBuf,
    file: Option<BufWriter<File>>,
}

impl AtomicFile {
    pub fn create(path: &Path) -> Result<AtomicFile, CheckpointError> {
        // A folder at the target would only be noticed by the rename, after all the work.
        if path.is_dir() {
            let problem = "cannot be written because it is a folder; give the name of a file".to_string();
            return Err(CheckpointError::Write { path: path.to_path_buf(), problem });
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(CheckpointError::io("write", path))?;
        Ok(AtomicFile {
            path: path.to_path_buf(),
            partial,
            file: Some(BufWriter::with_capacity(1 << 20, file)),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        match &mut self.file {
            Some(file) => file.write_all(bytes).map_err(CheckpointError::io("write", &self.path)),
            None => Ok(()),
        }
    }

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

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // What is still buffered belongs to a file that is about to go.
            drop(file.into_parts());
            let _ = fs::remove_file(&self.partial);
        }
    }
}
