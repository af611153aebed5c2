//! One download of a file at a time, across programs: the lock files of the hub's own tools, in their places.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::client::{OnEvent, sleep};
use crate::{HubError, PullEvent};

/// Held until it is dropped, or its process ends in any way.
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until nobody else holds it.
    pub fn take(path: &Path, what: &str, on_event: &mut OnEvent) -> Result<Lock, HubError> {
        let failed = || HubError::io("lock", path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed())?;
        }
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(failed())?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                // A file system without locks: the checksum still tells if two wrote at once.
                Err(TryLockError::Error(_)) => return Ok(Lock { _file: file }),
                Err(TryLockError::WouldBlock) => {}
            }
            if !std::mem::replace(&mut told, true) {
                let note = format!("{what} is being downloaded by another program; waiting for it");
                if on_event(PullEvent::Note(note)).is_break() {
                    return Err(HubError::Stopped { what: what.to_owned() });
                }
            }
            if !sleep(Duration::from_millis(200), on_event) {
                return Err(HubError::Stopped { what: what.to_owned() });
            }
        }
    }

    /// Whether somebody holds any lock of a folder.
    pub fn is_any_held(folder: &Path) -> bool {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        files
            .filter_map(|entry| File::open(entry.path()).ok())
            .any(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }
}
