//! What this machine has: processor, cores, memory now available, and the program's own peak.

/// A number of KiB from a line such as `MemAvailable:   12345 kB`.
fn kib_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line[field.len()..].trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes of memory that can be used without swapping, where the system tells.
pub fn available_memory() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// Bytes of memory in the machine, where the system tells.
pub fn total_memory() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

/// The most memory this process has held at once, where the system tells.
pub fn peak_memory() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// Hardware threads this program may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Name and feature flags of the processor, where the system tells.
pub fn processor() -> (String, Vec<String>) {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu_field(&text, "model name").unwrap_or(std::env::consts::ARCH).to_owned();
    let flags = cpu_field(&text, "flags").or_else(|| cpu_field(&text, "Features")).unwrap_or_default();
    (name, flags.split_whitespace().map(str::to_owned).collect())
}

/// The value of the first line such as `flags : fpu sse2`.
fn cpu_field<'t>(text: &'t str, field: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == field).then(|| value.trim())
    })
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

    #[test]
    fn processor_fields_are_the_first_of_their_name() {
        let text = "processor\t: 0\nmodel name\t: A Chip: v2\nflags\t\t: fpu avx2\nflags : none\n";
        assert_eq!(cpu_field(text, "model name"), Some("A Chip: v2"));
        assert_eq!(cpu_field(text, "flags"), Some("fpu avx2"));
        assert_eq!(cpu_field(text, "Features"), None);
    }
}
