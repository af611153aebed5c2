//! Files that are not in memory: only the ranges that are needed are asked for, and sizes beyond 32 bits hold.

mod support;

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use mambo_checkpoint::{ByteSource, Checkpoint, ConfigFiles, Format, SourceFile};
use support::{Raw, good_gguf, safetensors};

const GIB: u64 = 1 << 30;

/// A file of which only the head exists; every byte after it tells its own offset.
struct Remote {
    head: Vec<u8>,
    size: u64,
    asked: Arc<Mutex<Vec<Range<u64>>>>,
}

impl Remote {
    fn new(head: Vec<u8>, size: u64) -> Remote {
        Remote { head, size, asked: Arc::default() }
    }

    fn byte(&self, offset: u64) -> u8 {
        usize::try_from(offset).ok().and_then(|at| self.head.get(at)).map_or((offset % 251) as u8, |b| *b)
    }
}

impl ByteSource for Remote {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        self.asked.lock().unwrap().push(range.clone());
        Ok(range.map(|offset| self.byte(offset)).collect())
    }
}

fn open(name: &str, remote: Remote) -> Checkpoint {
    Checkpoint::from_sources(name, ConfigFiles::default(), vec![SourceFile::new(name, remote)]).unwrap()
}

#[test]
fn a_gguf_file_over_4_gib_is_described_and_read_by_ranges() {
    // One tensor takes 5 GiB, which no 32-bit length holds; the next one lies beyond every 32-bit offset.
    let rows = 5 * GIB / 4096;
    let head =
        Raw::gguf(2, 0).tensor("huge", &[1024, rows], 0, 0).tensor("after", &[8], 0, 5 * GIB).data(32, 0);
    let start = head.0.len() as u64;
    let remote = Remote::new(head.0, start + 5 * GIB + 32);
    let asked = remote.asked.clone();
    let checkpoint = open("far.gguf", remote);
    assert_eq!(checkpoint.format(), Format::Gguf);
    assert_eq!(checkpoint.total_bytes(), 5 * GIB + 32);
    assert!(asked.lock().unwrap().iter().all(|range| range.end <= 16 << 20), "opening reads headers only");
    asked.lock().unwrap().clear();

    let (huge, after) = (checkpoint.tensor("huge").unwrap(), checkpoint.tensor("after").unwrap());
    assert_eq!((huge.byte_len(), after.byte_len()), (5 * GIB, 32));
    assert_eq!(checkpoint.read(after).unwrap()[0], ((start + 5 * GIB) % 251) as u8);
    let last = checkpoint.read_range(huge, 5 * GIB - 4..5 * GIB).unwrap();
    assert_eq!(last[3], ((start + 5 * GIB - 1) % 251) as u8);
    let end = start + 5 * GIB;
    assert_eq!(*asked.lock().unwrap(), [end..end + 32, end - 4..end]);
}

#[test]
fn a_header_is_read_however_long_it_is() {
    let key = "x".repeat(40 << 20);
    let head = Raw::gguf(1, 1).str("k").u32(8).str(&key).tensor("a", &[8], 0, 0).data(32, 32).0;
    let size = head.len() as u64;
    let checkpoint = open("long.gguf", Remote::new(head, size));
    assert_eq!(checkpoint.read(checkpoint.tensor("a").unwrap()).unwrap()[..3], [0, 1, 2]);
}

#[test]
fn shards_of_safetensors_are_read_by_ranges() {
    let shard = |name: &str, end: u64| {
        let entry =
            format!(r#"{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[{},{end}]}}}}"#, end - 4);
        let head = safetensors(&entry, 0);
        let start = head.len() as u64;
        (SourceFile::new(name, Remote::new(head, start + end)), start)
    };
    let ((a, a_start), (b, b_start)) = (shard("a", 6 * GIB), shard("b", 4));
    let checkpoint = Checkpoint::from_sources("model", ConfigFiles::default(), vec![a, b]).unwrap();
    assert_eq!(checkpoint.format(), Format::Safetensors);
    for (name, offset) in [("a", a_start + 6 * GIB - 4), ("b", b_start)] {
        let tensor = checkpoint.tensor(name).unwrap();
        assert_eq!(checkpoint.read(tensor).unwrap()[0], (offset % 251) as u8, "{name}");
    }
}

/// Hands out headers, and then less than it is asked for, or nothing.
struct Broken(Vec<u8>, Option<usize>);

impl ByteSource for Broken {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Cow<'_, [u8]>> {
        match self.1 {
            _ if range.start == 0 => self.0.read(range),
            Some(bytes) => Ok(vec![0; bytes].into()),
            None => Err(io::Error::other("the connection was lost")),
        }
    }
}

#[test]
fn failures_name_file_and_tensor() {
    for (bytes, reason) in [(None, "the connection was lost"), (Some(3), "32 bytes were asked for, 3 came")] {
        let file = SourceFile::new("m.gguf", Broken(good_gguf(), bytes));
        let checkpoint = Checkpoint::from_sources("m.gguf", ConfigFiles::default(), vec![file]).unwrap();
        let error = checkpoint.read(checkpoint.tensor("a.weight").unwrap()).unwrap_err().to_string();
        let want = format!(
            "m.gguf: cannot read tensor `a.weight`: {reason}; check that the file is still there and complete"
        );
        assert_eq!(error, want);
    }
}
