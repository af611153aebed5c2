//! What processor this machine has, and how many threads it runs.

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
    fn processor_fields_are_the_first_of_their_name() {
        let text = "processor\t: 0\nmodel name\t: A Chip: v2\nflags\t\t: fpu avx2\nflags : none\n";
        assert_eq!(cpu_field(text, "model name"), Some("A Chip: v2"));
        assert_eq!(cpu_field(text, "flags"), Some("fpu avx2"));
        assert_eq!(cpu_field(text, "Features"), None);
    }
}
