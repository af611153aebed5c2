//! What a caller hears while something is fetched.

/// Something that happens during a download; whoever is told may end it.
#[derive(Clone, Debug)]
pub enum PullEvent<'e> {
    /// Something a user should know.
    Note(String),
    /// A pause before the next attempt.
    Waiting {
        /// What went wrong.
        why: String,
        /// How long it takes.
        seconds: u64,
    },
    /// Nothing happened: a chance to end the waiting.
    Idle,
    /// Bytes came, or were found from an earlier attempt.
    Progress {
        /// The file.
        file: &'e str,
        /// Its bytes that are there.
        done: u64,
        /// Its bytes in all.
        total: u64,
    },
}
