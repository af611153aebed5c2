//! Numbers for people: thousands, parameter counts, shares, aligned columns.

/// A number with commas between its thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 turn`, `2 turns`.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A count in the unit people say it in, such as `31.6 B`.
pub fn short_count(number: u64) -> String {
    let value = number as f64;
    match number {
        0..1_000 => number.to_string(),
        1_000..1_000_000 => format!("{:.1} K", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", value / 1e6),
        _ => format!("{:.1} B", value / 1e9),
    }
}

/// A token count as context lengths are written, such as `128K`.
pub fn context_text(tokens: usize) -> String {
    match tokens {
        t if t >= 1 << 20 && t.is_multiple_of(1 << 20) => format!("{}M", t >> 20),
        t if t >= 1024 && t.is_multiple_of(1024) => format!("{}K", t >> 10),
        t => t.to_string(),
    }
}

/// `0 2-4 7` for ascending numbers.
pub fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => parts.push((number, number)),
        }
    }
    let text = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    parts.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// Rows of text under a head; a column whose head starts with `>` is aligned to the right.
pub struct Columns {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// An empty table.
    pub fn new(head: &[&str]) -> Self {
        let right = head.iter().map(|h| h.starts_with('>')).collect();
        let names = head.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
        Columns { right, rows: vec![names] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table, every line indented by two spaces.
    pub fn text(&self) -> String {
        let columns = self.right.len();
        let width = |c: usize| {
            self.rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (c, cell) in row.iter().enumerate().take(columns) {
                let w = widths[c];
                line += "  ";
                line += &if self.right[c] { format!("{cell:>w$}") } else { format!("{cell:w$}") };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// Median, least and most of some measurements.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// The spread of a list; zeros for an empty one.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Spread { median: 0.0, min: 0.0, max: 0.0 };
        };
        let half = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 };
        Spread { median, min, max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!((grouped(7).as_str(), grouped(31_577_940_288).as_str()), ("7", "31,577,940,288"));
        assert_eq!((short_count(999).as_str(), short_count(31_577_940_288).as_str()), ("999", "31.6 B"));
        assert_eq!((context_text(131_072).as_str(), context_text(1 << 20).as_str()), ("128K", "1M"));
        assert_eq!(context_text(1000), "1000");
        assert_eq!((counted(1, "turn").as_str(), counted(0, "turn").as_str()), ("1 turn", "0 turns"));
        assert_eq!(ranges(&[0, 2, 3, 4, 7]), "0 2-4 7");
    }

    #[test]
    fn columns_align() {
        let mut table = Columns::new(&["name", ">bytes"]);
        table.row(["a".into(), "10".into()]);
        table.row(["long".into(), "5".into()]);
        assert_eq!(table.text(), "  name  bytes\n  a        10\n  long      5\n");
    }

    #[test]
    fn the_middle_of_an_even_list_lies_between() {
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(&[]).max, 0.0);
    }
}
