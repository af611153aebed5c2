//! Memory as the system tells it: in the machine, and the most this process has held.

/// A number of KiB from a line such as `MemAvailable:   12345 kB`.
fn kib_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line[field.len()..].trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes of memory in the machine, where the system tells.
pub fn total() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// The most memory this process has held at once, where the system tells.
pub fn peak() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_scaled() {
        let text = "MemTotal:       100 kB\nMemAvailable:   42 kB\n";
        assert_eq!(kib_field(text, "MemAvailable"), Some(42 * 1024));
        assert_eq!(kib_field(text, "Swap"), None);
        assert_eq!(kib_field("MemTotal: x kB", "MemTotal"), None);
    }
}
