//! One file from the hub into the cache, through broken connections: every attempt asks for the bytes that are missing.

use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use crate::client::{Answer, Bytes, Client, OnEvent, Patience, Target};
use crate::hub::PlannedFile;
use crate::lock::Lock;
use crate::partial::Partial;
use crate::{HubError, PullEvent};

/// Brings a file to `blob`, its place in the cache, unless it is there.
pub fn download(
    client: &Client,
    target: &Target,
    file: &PlannedFile,
    (blob, lock): (&Path, &Path),
    on_event: &mut OnEvent,
) -> Result<(), HubError> {
    let _lock = Lock::take(lock, &target.what, on_event)?;
    // Whoever held the lock may have brought it. A file of another size is what another tool or a full disk left.
    match fs::metadata(blob) {
        Ok(found) if found.len() == file.size => return Ok(()),
        Ok(_) => fs::remove_file(blob).map_err(HubError::io("remove", blob))?,
        Err(_) => {}
    }
    let mut was_wrong = false;
    loop {
        let Some(mut partial) = open_partial(blob, file, on_event)? else {
            return Err(HubError::Stopped { what: target.what.clone() });
        };
        let began_at = partial.have();
        transfer(client, target, file, &mut partial, on_event)?;
        let Err(found) = partial.finish(blob)? else { return Ok(()) };
        // Bytes of an earlier attempt may have been damaged since; those that came just now are what the hub gives.
        if began_at == 0 || was_wrong {
            let (what, expected) = (target.what.clone(), file.checksum.digits().to_owned());
            return Err(HubError::WrongChecksum { what, expected, found });
        }
        was_wrong = true;
        let note =
            format!("{}: what was left of an earlier download is damaged; starting again", target.what);
        if on_event(PullEvent::Note(note)).is_break() {
            return Err(HubError::Stopped { what: target.what.clone() });
        }
    }
}

/// The unfinished file; nothing if the caller ended it.
fn open_partial(
    blob: &Path,
    file: &PlannedFile,
    on_event: &mut OnEvent,
) -> Result<Option<Partial>, HubError> {
    let mut name = blob.as_os_str().to_owned();
    name.push(".incomplete");
    let mut report = |done| on_event(PullEvent::Progress { file: &file.path, done, total: file.size });
    Partial::open(name.into(), file.checksum.clone(), file.size, &mut report)
}

/// Brings all missing bytes.
fn transfer(
    client: &Client,
    target: &Target,
    file: &PlannedFile,
    partial: &mut Partial,
    on_event: &mut OnEvent,
) -> Result<(), HubError> {
    let mut patience = Patience::new();
    while !partial.is_full() {
        let before = partial.have();
        let bytes = (before > 0).then_some(Bytes { from: before, to: None });
        let answer = client.get(target, bytes, on_event)?;
        let begins_at = first_byte(&answer);
        if begins_at != Some(before) && before > 0 {
            // A server without ranges sends all, and one that has no such range says so: both mean the first byte.
            partial.restart()?;
        }
        let reason = match begins_at {
            Some(at) if at == partial.have() => receive(answer, target, file, partial, on_event)?,
            _ => Some("the hub sent other bytes than it was asked for".to_owned()),
        };
        let Some(reason) = reason else { continue };
        if partial.have() > before {
            patience.renew();
        }
        if !patience.wait(&format!("{}: {reason}", target.what), None, &target.what, on_event)? {
            return Err(HubError::BrokenOff {
                what: target.what.clone(),
                times: patience.failures(),
                done: partial.have(),
                size: file.size,
                reason,
            });
        }
    }
    Ok(())
}

/// The byte of the file that an answer begins with.
fn first_byte(answer: &Answer) -> Option<u64> {
    match answer.status {
        200 => Some(0),
        206 => {
            let range = answer.headers.get("content-range")?.to_str().ok()?;
            range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
        }
        _ => None,
    }
}

/// Takes what an answer brings; why it ended early, if it did.
fn receive(
    answer: Answer,
    target: &Target,
    file: &PlannedFile,
    partial: &mut Partial,
    on_event: &mut OnEvent,
) -> Result<Option<String>, HubError> {
    let mut body = answer.body.into_reader();
    let mut buffer = vec![0; 256 << 10];
    while !partial.is_full() {
        let count = match body.read(&mut buffer) {
            Ok(0) => return Ok(Some(format!("the connection ended at byte {}", partial.have()))),
            Ok(count) => count,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let missing = usize::try_from(file.size - partial.have()).unwrap_or(usize::MAX);
        partial.write(&buffer[..count.min(missing)])?;
        let progress = PullEvent::Progress { file: &file.path, done: partial.have(), total: file.size };
        if let ControlFlow::Break(()) = on_event(progress) {
            return Err(HubError::Stopped { what: target.what.clone() });
        }
    }
    Ok(None)
}
