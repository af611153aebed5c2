//! Stop strings in a stream of text. Text that may be the start of one is held back until it is certain.

/// Finds the first of some strings.
#[derive(Clone, Debug)]
pub struct StopStrings {
    strings: Vec<String>,
    held: String,
}

/// What a piece of text led to.
#[derive(Debug, PartialEq, Eq)]
pub struct Passed {
    /// Text that is certain.
    pub text: String,
    /// The string that was found; nothing passes after it.
    pub stop: Option<String>,
}

impl StopStrings {
    /// Looks for these; empty ones are left out.
    pub fn new(strings: Vec<String>) -> StopStrings {
        StopStrings { strings: strings.into_iter().filter(|s| !s.is_empty()).collect(), held: String::new() }
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> Passed {
        if self.strings.is_empty() {
            return Passed { text: text.to_owned(), stop: None };
        }
        self.held.push_str(text);
        let found = self.strings.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        // The one that is complete first ends the answer, and of those the longest.
        if let Some((at, stop)) = found.min_by_key(|(at, stop)| (at + stop.len(), *at)) {
            let stop = stop.clone();
            let text = self.held[..at].to_owned();
            self.held.clear();
            return Passed { text, stop: Some(stop) };
        }
        let certain =
            self.held.len() - self.strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let text = self.held.drain(..certain).collect();
        Passed { text, stop: None }
    }

    /// What was held back, at the end of the text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The longest end of a text that a string starts with, in bytes.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = (1..stop.len().min(text.len() + 1)).rev().filter(|n| stop.is_char_boundary(*n));
    starts.into_iter().find(|n| text.ends_with(&stop[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pieces: &[&str], strings: &[&str]) -> (String, Option<String>) {
        let mut stops = StopStrings::new(strings.iter().map(|s| s.to_string()).collect());
        let mut text = String::new();
        for piece in pieces {
            let passed = stops.push(piece);
            text += &passed.text;
            if passed.stop.is_some() {
                return (text, passed.stop);
            }
        }
        (text + &stops.finish(), None)
    }

    #[test]
    fn a_stop_is_found_wherever_the_text_is_cut() {
        let text = "one, two; three — end";
        for strings in [&["; th"][..], &["—"], &["tw", "two;"], &["nowhere", "en"], &["zzz"], &["", "o"]] {
            let whole = run(&[text], strings);
            for cut in (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                for second in (cut..=text.len()).filter(|cut| text.is_char_boundary(*cut)) {
                    let pieces = [&text[..cut], &text[cut..second], &text[second..]];
                    assert_eq!(run(&pieces, strings), whole, "{pieces:?} {strings:?}");
                }
            }
        }
        assert_eq!(run(&[text], &["; th"]).0, "one, two");
        assert_eq!(run(&["ababac"], &["abac"]), ("ab".into(), Some("abac".into())));
    }
}
