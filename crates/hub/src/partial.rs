//! An unfinished file: its bytes so far, and the checksum of them. What an earlier attempt left is gone on with; a file
//! gets its final name only with the right checksum.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::HubError;
use crate::checksum::{Checksum, Hasher};

/// A file that is being written.
pub struct Partial {
    path: PathBuf,
    file: File,
    checksum: Checksum,
    hasher: Hasher,
    size: u64,
    have: u64,
}

impl Partial {
    /// Opens what there is, and reads it for the checksum. The caller holds the lock.
    pub fn open(
        path: PathBuf,
        checksum: Checksum,
        size: u64,
        on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<Partial>, HubError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(HubError::io("write", &path))?;
        let hasher = checksum.hasher(size);
        let mut partial = Partial { path, file, checksum, hasher, size, have: 0 };
        let mut buffer = vec![0; 1 << 20];
        loop {
            let count = partial.file.read(&mut buffer).map_err(HubError::io("read", &partial.path))?;
            if count == 0 {
                return Ok(Some(partial));
            }
            partial.hasher.update(&buffer[..count]);
            partial.have += count as u64;
            if partial.have > size {
                partial.restart()?;
                return Ok(Some(partial));
            }
            if on_progress(partial.have).is_break() {
                return Ok(None);
            }
        }
    }

    /// Bytes that are there.
    pub fn have(&self) -> u64 {
        self.have
    }

    /// Whether all bytes are there.
    pub fn is_full(&self) -> bool {
        self.have == self.size
    }

    /// Takes the next bytes; no more than are missing.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(HubError::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Forgets what came.
    pub fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(HubError::io("write", &self.path))?;
        (self.hasher, self.have) = (self.checksum.hasher(self.size), 0);
        Ok(())
    }

    /// Gives the file its name if it is what it should be; else its digits, and the file is gone.
    pub fn finish(self, name: &Path) -> Result<Result<(), String>, HubError> {
        let found = self.hasher.digits();
        if found != self.checksum.digits() {
            drop(self.file);
            fs::remove_file(&self.path).map_err(HubError::io("remove", &self.path))?;
            return Ok(Err(found));
        }
        self.file.sync_all().map_err(HubError::io("write", &self.path))?;
        drop(self.file);
        fs::rename(&self.path, name).map_err(HubError::io("write", name))?;
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path, size: u64) -> Partial {
        let digits = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let checksum = Checksum::parse(digits).unwrap();
        Partial::open(folder.join("x.incomplete"), checksum, size, &mut |_| ControlFlow::Continue(()))
            .unwrap()
            .unwrap()
    }

    #[test]
    fn a_file_goes_on_where_it_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = open(folder.path(), 5);
        first.write(b"hel").unwrap();
        drop(first);
        let mut second = open(folder.path(), 5);
        assert_eq!(second.have(), 3);
        second.write(b"lo").unwrap();
        let name = folder.path().join("x");
        second.finish(&name).unwrap().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"hello");
        assert!(!folder.path().join("x.incomplete").exists());
    }

    #[test]
    fn wrong_bytes_never_get_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut partial = open(folder.path(), 5);
        partial.write(b"hallo").unwrap();
        assert!(partial.finish(&folder.path().join("x")).unwrap().is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // More bytes than the file has are not the file's.
        fs::write(folder.path().join("x.incomplete"), b"hello world").unwrap();
        assert_eq!(open(folder.path(), 5).have(), 0);
    }
}
