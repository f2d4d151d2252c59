//! Dates for templates, in UTC.

use std::time::Duration;

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

/// A second of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    year: u64,
    /// From 1.
    month: u64,
    /// From 1.
    day: u64,
    /// From 0.
    day_of_year: u64,
    /// From Sunday, 0.
    weekday: u64,
    second_of_day: u64,
}

impl Date {
    /// The date `since_1970`.
    pub(super) fn at(since_1970: Duration) -> Self {
        // Beyond any calendar the arithmetic need not be right, but must not overflow.
        let seconds = since_1970.as_secs().min(1 << 48);
        let days = seconds / 86_400;
        let weekday = (days + 4) % 7;
        let (mut year, mut day) = (1970, days);
        let mut cycle = day / 146_097;
        (year, day) = (year + 400 * cycle, day - 146_097 * cycle);
        while day >= days_of_year(year) {
            day -= days_of_year(year);
            year += 1;
        }
        let day_of_year = day;
        cycle = 0;
        while day >= days_of_month(year, cycle) {
            day -= days_of_month(year, cycle);
            cycle += 1;
        }
        Self { year, month: cycle + 1, day: day + 1, day_of_year, weekday, second_of_day: seconds % 86_400 }
    }

    /// As C's `strftime` in the locale "C".
    ///
    /// # Errors
    /// For a conversion that is not known.
    pub(super) fn format(&self, format: &str) -> Result<String, String> {
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let month = MONTHS[self.month as usize - 1];
        let weekday = WEEKDAYS[self.weekday as usize];
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            out += &match chars.next() {
                Some('Y') => self.year.to_string(),
                Some('y') => format!("{:02}", self.year % 100),
                Some('m') => format!("{:02}", self.month),
                Some('B') => month.to_owned(),
                Some('b' | 'h') => month[..3].to_owned(),
                Some('d') => format!("{:02}", self.day),
                Some('e') => format!("{:2}", self.day),
                Some('-') if chars.as_str().starts_with('d') => {
                    chars.next();
                    self.day.to_string()
                }
                Some('j') => format!("{:03}", self.day_of_year + 1),
                Some('A') => weekday.to_owned(),
                Some('a') => weekday[..3].to_owned(),
                Some('H') => format!("{hour:02}"),
                Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
                Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
                Some('M') => format!("{minute:02}"),
                Some('S') => format!("{:02}", self.second_of_day % 60),
                Some('F') => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
                Some('T') => format!("{hour:02}:{minute:02}:{:02}", self.second_of_day % 60),
                Some('Z') => "UTC".to_owned(),
                Some('%') => "%".to_owned(),
                other => {
                    let name = other.map(String::from).unwrap_or_default();
                    return Err(format!("strftime_now: %{name} is not supported"));
                }
            };
        }
        Ok(out)
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    365 + u64::from(is_leap(year))
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        1 => 28 + u64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Seconds and what `date -u -d @SECONDS` prints.
        let cases = [
            (0, "Thu 01 Jan 1970 00:00:00 001"),
            (951_782_399, "Mon 28 Feb 2000 23:59:59 059"),
            (951_782_400, "Tue 29 Feb 2000 00:00:00 060"),
            (978_307_199, "Sun 31 Dec 2000 23:59:59 366"),
            (1_709_210_096, "Thu 29 Feb 2024 12:34:56 060"),
            (4_107_542_400, "Mon 01 Mar 2100 00:00:00 060"),
            (32_503_680_000, "Wed 01 Jan 3000 00:00:00 001"),
        ];
        for (seconds, expected) in cases {
            let date = Date::at(Duration::from_secs(seconds));
            assert_eq!(date.format("%a %d %b %Y %H:%M:%S %j").unwrap(), expected);
        }
        assert!(Date::at(Duration::MAX).format("%Y").is_ok());
    }

    #[test]
    fn every_conversion() {
        let date = Date::at(Duration::from_secs(1_709_210_096 + 3600 - 8 * 86_400));
        let format = "%y %m %B %h %e %-d %A %I %p %F %T %Z %%é";
        let expected = "24 02 February Feb 21 21 Wednesday 01 PM 2024-02-21 13:34:56 UTC %é";
        assert_eq!(date.format(format).unwrap(), expected);
        assert_eq!(date.format("%Q").unwrap_err(), "strftime_now: %Q is not supported");
        assert_eq!(date.format("%").unwrap_err(), "strftime_now: % is not supported");
        assert_eq!(Date::at(Duration::ZERO).format("%I %p").unwrap(), "12 AM");
    }
}
