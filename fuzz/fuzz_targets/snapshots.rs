//! Any bytes as a session's file: refused, or whole and of the length that its header says.
#![cfg_attr(fuzzing, no_main)]

use mambo_engine::{Snapshot, SnapshotHeader};
use mambo_fuzz::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let header = SnapshotHeader::read(bytes);
    let Ok(snapshot) = Snapshot::from_bytes(bytes) else { return };
    let header = header.expect("what is whole has a header");
    assert_eq!((header.tokens, header.file_bytes), (snapshot.tokens().len(), bytes.len() as u64));
    assert!(snapshot.bytes() <= bytes.len());
});
