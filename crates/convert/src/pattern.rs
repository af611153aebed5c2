//! Which weights a rule means. Knows names alone.

/// Whether a pattern means this weight: its whole name, the end of it (`experts_down`) or its start
/// (`layers.3`, `mtp`), at a dot. A `*` stands for any letters, dots included: `layers.1*.experts_*`.
pub fn matches(pattern: &str, weight: &str) -> bool {
    let at_dots = |start: usize| start == 0 || weight.as_bytes()[start - 1] == b'.';
    let starts = (0..weight.len()).filter(|&start| weight.is_char_boundary(start) && at_dots(start));
    starts.into_iter().any(|start| {
        let rest = &weight[start..];
        // Only a pattern that begins with the name may leave its end open.
        glob(pattern, rest) || (start == 0 && prefixes(rest).any(|prefix| glob(pattern, prefix)))
    })
}

/// The name up to each of its dots.
fn prefixes(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(dot, _)| &name[..dot])
}

/// Whether `*` can be filled in so that the pattern is the text.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').map_or((None, rest), |(m, t)| (Some(m), t));
    // The earliest place of every piece leaves the most room for those after it.
    for piece in middle.into_iter().flat_map(|m| m.split('*')) {
        let Some(at) = text.find(piece) else { return false };
        text = &text[at + piece.len()..];
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_at_dots() {
        assert!(matches("experts_down", "layers.3.experts_down"));
        assert!(matches("layers.3", "layers.3.experts_down"));
        assert!(matches("mtp", "mtp.q") && matches("head", "head"));
        assert!(matches("3.experts_down", "layers.3.experts_down"));
        assert!(!matches("down", "layers.3.experts_down"));
        assert!(!matches("layers.1", "layers.13.q"));
        assert!(!matches("", "head") && !matches("3", "layers.3.q"));
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("layers.*.experts_*", "layers.3.experts_down"));
        assert!(matches("layers.1*", "layers.13.q") && matches("layers.1*", "layers.1.q"));
        assert!(matches("experts_*", "layers.3.experts_up") && matches("*", "head"));
        assert!(matches("*_proj", "layers.0.in_proj") && matches("l*s.*.q", "layers.13.q"));
        assert!(!matches("layers.*.experts_*", "layers.3.shared_up"));
        assert!(!matches("*_proj", "layers.0.in_projector") && !matches("a*a", "a"));
    }
}
