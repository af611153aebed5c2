//! A time as text, for `strftime_now` and whoever else writes one. Knows the calendar in UTC; the caller knows the time, so a prompt
//! can be rendered again as it was.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY_S: i64 = 86_400;

/// Year, month from 1, day from 1 of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Count from 0000-03-01: leap days then end a year, and the months before fall into a pattern of five.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// Formats `unix_s` by the directives of C's `strftime` that templates use; others stay as written.
pub fn format(unix_s: i64, format: &str) -> String {
    let (days, seconds) = (unix_s.div_euclid(DAY_S), unix_s.rem_euclid(DAY_S));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let month_name = MONTHS[(month - 1) as usize];
    let weekday = WEEKDAYS[(days + 4).rem_euclid(7) as usize];
    let mut output = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            output.push(c);
            continue;
        }
        let mut directive = rest.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = rest.next();
        }
        let padded = |number: i64| if unpadded { number.to_string() } else { format!("{number:02}") };
        let text = match directive {
            Some('Y') => year.to_string(),
            Some('y') => padded(year.rem_euclid(100)),
            Some('m') => padded(month),
            Some('d') => padded(day),
            Some('e') => format!("{day:2}"),
            Some('B') => month_name.into(),
            Some('b' | 'h') => month_name[..3].into(),
            Some('A') => weekday.into(),
            Some('a') => weekday[..3].into(),
            Some('H') => padded(hour),
            Some('I') => padded(hour12),
            Some('M') => padded(minute),
            Some('S') => padded(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".into(),
            Some('z') => "+0000".into(),
            Some('%') => "%".into(),
            Some(other) => format!("%{}{other}", if unpadded { "-" } else { "" }),
            None => "%".into(),
        };
        output.push_str(&text);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn known_moments() {
        assert_eq!(format(0, "%A %d %B %Y %T %p"), "Thursday 01 January 1970 00:00:00 AM");
        assert_eq!(format(951_782_400, "%F %a"), "2000-02-29 Tue");
        assert_eq!(format(1_709_251_199, "%-d %b %y, %I:%M"), "29 Feb 24, 11:59");
        assert_eq!(format(-1, "%F %T"), "1969-12-31 23:59:59");
        assert_eq!(format(0, "100%% %q %"), "100% %q %");
    }
}
