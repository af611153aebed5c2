//! A safetensors file of logits whose rows are written as they come: all of them together may be larger
//! than memory. It appears complete or not at all.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

/// Tensors `[rows][columns]` of f32 that are filled row by row.
pub struct LogitsFile {
    path: PathBuf,
    partial: PathBuf,
    /// Nothing once the file is in its place.
    file: Option<BufWriter<File>>,
    tensors: Vec<Part>,
}

/// One tensor's place in the file.
struct Part {
    /// Byte of the next value.
    next: u64,
    /// Byte after the last value.
    end: u64,
}

impl LogitsFile {
    /// Starts a file of tensors with these names and rows.
    pub fn create(path: &Path, columns: usize, tensors: &[(&str, usize)]) -> Result<LogitsFile> {
        let failed = || format!("cannot write {}", path.display());
        let path = &target(path)?;
        let (mut header, mut parts, mut offset) = (Map::new(), Vec::new(), 0);
        for (name, rows) in tensors {
            let end = offset + (rows * columns * 4) as u64;
            let shape = [*rows, columns];
            header.insert(
                (*name).to_owned(),
                json!({"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}),
            );
            parts.push(Part { next: offset, end });
            offset = end;
        }
        let mut header = Value::Object(header).to_string();
        // Readers that cast in place want the data on a multiple of eight.
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let start = 8 + header.len() as u64;
        parts.iter_mut().for_each(|part| (part.next, part.end) = (part.next + start, part.end + start));
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        let mut file = BufWriter::new(File::create_new(&partial).with_context(failed)?);
        file.write_all(&(header.len() as u64).to_le_bytes()).with_context(failed)?;
        file.write_all(header.as_bytes()).with_context(failed)?;
        Ok(LogitsFile { path: path.to_owned(), partial, file: Some(file), tensors: parts })
    }

    /// Where the unfinished file is.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Adds values to a tensor, by its place in the list it was made from.
    pub fn add(&mut self, tensor: usize, values: &[f32]) -> Result<()> {
        let part = &mut self.tensors[tensor];
        let Some(file) = self.file.as_mut().filter(|_| !values.is_empty()) else { return Ok(()) };
        let first = part.next;
        part.next += 4 * values.len() as u64;
        assert!(part.next <= part.end, "more rows than the header says");
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let written = file.seek(SeekFrom::Start(first)).and_then(|_| file.write_all(&bytes));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Puts the file into its place.
    pub fn finish(mut self) -> Result<()> {
        assert!(self.tensors.iter().all(|part| part.next == part.end), "fewer rows than the header says");
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let done = file
            .flush()
            .and_then(|()| file.get_ref().sync_all())
            .and_then(|()| std::fs::rename(&self.partial, &self.path));
        if done.is_err() {
            let _ = std::fs::remove_file(&self.partial);
        }
        done.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The regular file that is to appear: where a link points to, and never a folder or a device, which a
/// rename would replace.
fn target(path: &Path) -> Result<PathBuf> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            bail!("{} is a folder, a device or a pipe; give the name of a file", path.display())
        }
        Ok(_) => std::fs::canonicalize(path).with_context(|| format!("cannot write {}", path.display())),
        Err(_) => Ok(path.to_owned()),
    }
}

impl Drop for LogitsFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // What is still buffered belongs to a file that is about to go.
            drop(file.into_parts());
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_come_in_turns_lie_in_order_and_a_dropped_file_is_gone() {
        let path = std::env::temp_dir().join(format!("mambo-logits-{}.safetensors", std::process::id()));
        let mut file = LogitsFile::create(&path, 2, &[("a", 3), ("b", 2)]).unwrap();
        for (tensor, values) in
            [(0, &[1.0, 2.0][..]), (1, &[7.0, 8.0]), (0, &[3.0, 4.0, 5.0, 6.0]), (1, &[9.0, 0.0])]
        {
            file.add(tensor, values).unwrap();
        }
        let partial = file.partial().to_owned();
        assert!(partial.exists() && !path.exists());
        file.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let values = |name: &str| -> Vec<f32> {
            let (words, _) = read.tensor(name).unwrap().data().as_chunks();
            words.iter().map(|&word| f32::from_le_bytes(word)).collect()
        };
        assert_eq!(values("a"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(values("b"), [7.0, 8.0, 9.0, 0.0]);
        drop(LogitsFile::create(&path, 2, &[("a", 1)]).unwrap());
        assert!(!partial.exists() && std::fs::read(&path).unwrap() == bytes);
        std::fs::remove_file(&path).unwrap();
        assert!(LogitsFile::create(Path::new("/dev/null"), 2, &[]).is_err());
    }
}
