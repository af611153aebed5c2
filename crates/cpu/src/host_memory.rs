//! Memory of this machine and of this process, where the system tells.

use std::path::Path;

/// A number of KiB from a line such as `MemAvailable:   12345 kB`.
fn kib_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line[field.len()..].trim_start_matches(':').split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Bytes of memory that can be used without swapping, where the system tells: in a container no more than
/// its limit leaves.
pub fn available() -> Option<u64> {
    let machine = kib_field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")?;
    Some(group_room().map_or(machine, |room| room.min(machine)))
}

/// What the control groups (version 2) of this process leave, where one has a limit. Every group above has
/// a say too.
fn group_room() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let folder = root.join(own);
    let above = folder.ancestors().take_while(|folder| folder.starts_with(root));
    let room = |folder: &Path| {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        room_in_group(&read("memory.max")?, &read("memory.current")?, &read("memory.stat")?)
    };
    above.filter_map(room).min()
}

/// What is left below a group's limit. Cached files count as used there, but go when memory is wanted.
fn room_in_group(max: &str, current: &str, stat: &str) -> Option<u64> {
    let max: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let cached = |field: &str| -> u64 {
        let line = stat.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    let used = current.saturating_sub(cached("inactive_file") + cached("active_file"));
    Some(max.saturating_sub(used))
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

    #[test]
    fn a_group_leaves_what_is_neither_used_nor_cached() {
        let stat = "anon 600\nfile 900\nactive_file 100\ninactive_file 200\n";
        assert_eq!(room_in_group("2000\n", "1500\n", stat), Some(800));
        assert_eq!(room_in_group("1000\n", "1500\n", ""), Some(0));
        assert_eq!(room_in_group("max\n", "1500\n", stat), None);
    }
}
