//! Moments as the dialects write them.

use std::time::{SystemTime, UNIX_EPOCH};

use mambo_text::clock;

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// Seconds since 1970 as `2026-11-16T18:00:00Z`.
pub(crate) fn rfc3339(seconds: i64) -> String {
    clock::format(seconds, "%FT%TZ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_the_form_of_rfc_3339() {
        assert_eq!(rfc3339(1_794_852_000), "2026-11-16T18:00:00Z");
    }
}
