//! Machine code that comes with a release: one file of compressed modules, so that a GPU's driver alone suffices.
//!
//! Layout, in little-endian: [`MAGIC`], the compiler's version (two u32), a digest of all sources, the number of
//! modules (u32); for each its key, where it starts (u64), its compressed and its whole length (two u32); then the
//! modules in zlib's form. A key is a digest of everything that the machine code was made of, the architecture
//! included, so what does not fit is never found.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Mutex;

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

/// Digest of what a module was made of.
pub(crate) type Key = [u8; 32];

const MAGIC: &[u8; 16] = b"mambo kernels 1\n";
/// Bytes of one entry.
const ENTRY_BYTES: usize = 32 + 8 + 4 + 4;
/// More modules than any release has.
const MOST_MODULES: u32 = 1 << 20;
/// Larger than any module.
const MOST_BYTES: u32 = 64 << 20;
const COMPRESSION: u8 = 9;

/// Where a module is.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    compressed: u32,
    whole: u32,
}

/// An open archive.
pub(crate) struct Archive {
    file: Mutex<File>,
    places: HashMap<Key, Place>,
    /// Version of the compiler that made it.
    pub compiler: (i32, i32),
    /// Digest of the sources of the program that made it.
    pub sources: Key,
}

impl Archive {
    /// Reads the list of modules.
    pub fn open(path: &Path) -> io::Result<Archive> {
        let mut file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut head = [0; 16 + 4 + 4 + 32 + 4];
        file.read_exact(&mut head).map_err(|_| broken("it is too short"))?;
        let mut fields = Fields(&head);
        if fields.take() != *MAGIC {
            return Err(broken("it is no archive of kernels"));
        }
        let compiler = (i32::from_le_bytes(fields.take()), i32::from_le_bytes(fields.take()));
        let sources = fields.take();
        let count = u32::from_le_bytes(fields.take());
        if count > MOST_MODULES {
            return Err(broken("its list is damaged"));
        }
        let mut list = vec![0; count as usize * ENTRY_BYTES];
        file.read_exact(&mut list).map_err(|_| broken("its list is cut off"))?;
        let mut places = HashMap::with_capacity(count as usize);
        for entry in list.chunks_exact(ENTRY_BYTES) {
            let mut fields = Fields(entry);
            let key = fields.take();
            let at = u64::from_le_bytes(fields.take());
            let (compressed, whole) = (u32::from_le_bytes(fields.take()), u32::from_le_bytes(fields.take()));
            let end = at.checked_add(u64::from(compressed));
            if end.is_none_or(|end| end > file_bytes) || whole > MOST_BYTES {
                return Err(broken("it is cut off"));
            }
            places.insert(key, Place { at, compressed, whole });
        }
        Ok(Archive { file: Mutex::new(file), places, compiler, sources })
    }

    /// A module, if it is there and whole.
    pub fn module(&self, key: &Key) -> Option<Vec<u8>> {
        let place = self.places.get(key)?;
        let mut compressed = vec![0; place.compressed as usize];
        {
            let mut file = self.file.lock().ok()?;
            file.seek(SeekFrom::Start(place.at)).ok()?;
            file.read_exact(&mut compressed).ok()?;
        }
        let module = decompress_to_vec_zlib_with_limit(&compressed, place.whole as usize).ok()?;
        (module.len() == place.whole as usize).then_some(module)
    }
}

/// Fixed parts of a slice, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("lengths are constants");
        self.0 = rest;
        *field
    }
}

/// An archive that is being put together.
pub(crate) struct Writer {
    compiler: (i32, i32),
    sources: Key,
    modules: Vec<(Key, u32, Vec<u8>)>,
}

impl Writer {
    pub fn new(compiler: (i32, i32), sources: Key) -> Writer {
        Writer { compiler, sources, modules: Vec::new() }
    }

    /// A module in the form that the archive holds.
    pub fn compress(module: &[u8]) -> Vec<u8> {
        compress_to_vec_zlib(module, COMPRESSION)
    }

    /// Adds a compressed module of so many bytes.
    pub fn add(&mut self, key: Key, whole: usize, compressed: Vec<u8>) {
        let whole = u32::try_from(whole).expect("a module is smaller than 4 GiB");
        self.modules.push((key, whole, compressed));
    }

    /// Writes all of it, in the order of keys, so that equal contents are equal files.
    pub fn write(mut self, to: &mut dyn Write) -> io::Result<()> {
        self.modules.sort_by_key(|(key, ..)| *key);
        self.modules.dedup_by_key(|(key, ..)| *key);
        to.write_all(MAGIC)?;
        to.write_all(&self.compiler.0.to_le_bytes())?;
        to.write_all(&self.compiler.1.to_le_bytes())?;
        to.write_all(&self.sources)?;
        to.write_all(&(self.modules.len() as u32).to_le_bytes())?;
        let mut at = (16 + 4 + 4 + 32 + 4 + self.modules.len() * ENTRY_BYTES) as u64;
        for (key, whole, compressed) in &self.modules {
            to.write_all(key)?;
            to.write_all(&at.to_le_bytes())?;
            to.write_all(&(compressed.len() as u32).to_le_bytes())?;
            to.write_all(&whole.to_le_bytes())?;
            at += compressed.len() as u64;
        }
        self.modules.iter().try_for_each(|(.., compressed)| to.write_all(compressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<u8> {
        let mut writer = Writer::new((13, 0), [7; 32]);
        for (key, module) in [([2; 32], b"second".repeat(100)), ([1; 32], b"first".to_vec())] {
            writer.add(key, module.len(), Writer::compress(&module));
        }
        let mut bytes = Vec::new();
        writer.write(&mut bytes).expect("memory can be written");
        bytes
    }

    fn opened(name: &str, bytes: &[u8]) -> io::Result<Archive> {
        let path = std::env::temp_dir().join(format!("mambo-archive-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes)?;
        let archive = Archive::open(&path);
        std::fs::remove_file(&path)?;
        archive
    }

    #[test]
    fn modules_come_back() {
        let archive = opened("whole", &written()).expect("it was written whole");
        assert_eq!((archive.compiler, archive.sources), ((13, 0), [7; 32]));
        assert_eq!(archive.module(&[1; 32]).as_deref(), Some(&b"first"[..]));
        assert_eq!(archive.module(&[2; 32]), Some(b"second".repeat(100)));
        assert_eq!(archive.module(&[3; 32]), None);
    }

    #[test]
    fn damaged_files_are_no_modules() {
        let whole = written();
        for length in 0..whole.len() {
            assert!(opened("short", &whole[..length]).is_err(), "{length} bytes");
        }
        for at in 60..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let Ok(archive) = opened("damaged", &damaged) else { continue };
            for (key, module) in [([1; 32], b"first".to_vec()), ([2; 32], b"second".repeat(100))] {
                assert!(archive.module(&key).is_none_or(|found| found == module), "byte {at}");
            }
        }
    }
}
