//! Tables and numbers for people.

/// Rows of text, columns aligned; numbers to the right.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// With a header; a column whose title starts with `>` is aligned right.
    pub fn new(titles: &[&str]) -> Table {
        let right = titles.iter().map(|title| title.starts_with('>')).collect();
        let titles = titles
            .iter()
            .map(|title| title.trim_start_matches('>').to_owned())
            .collect();
        Table {
            rows: vec![titles],
            right,
        }
    }

    /// One row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there are rows below the header.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }
}

/// A figure, or what stands in its place where nobody has one.
pub fn unless(nobody: bool, figure: impl FnOnce() -> String) -> String {
    match nobody {
        true => "-".to_owned(),
        false => figure(),
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.right.len();
        let width: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows
                    .iter()
                    .map(|row| row.get(column).map_or(0, |cell| cell.chars().count()))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate().take(columns) {
                let pad = " ".repeat(width[column] - cell.chars().count());
                if column > 0 {
                    line.push_str("  ");
                }
                if self.right[column] {
                    line.push_str(&pad);
                    line.push_str(cell);
                } else {
                    line.push_str(cell);
                    line.push_str(&pad);
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate with a decimal prefix: 1.2 M.
pub fn rate(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T"])
}

/// Bytes with a binary prefix: 3.1 MiB.
pub fn bytes(number: u64) -> String {
    scaled(number as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// 2026-11-21 12:34:56.789, UTC.
pub fn when(unix_ms: u64) -> String {
    let (seconds, day) = (unix_ms / 1000 % 86_400, unix_ms / 86_400_000);
    // Days since 1 March of the year 0, in eras of 400 years of which each day is known.
    let (era, of_era) = ((day + 719_468) / 146_097, (day + 719_468) % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let month = (march_month + 2) % 12 + 1;
    format!(
        "{:04}-{month:02}-{:02} {:02}:{:02}:{:02}.{:03}",
        era * 400 + year_of_era + u64::from(month <= 2),
        of_year - (153 * march_month + 2) / 5 + 1,
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        unix_ms % 1000
    )
}

/// Seconds since 1970 of `2026-11-21`, `2026-11-21T14`, `2026-11-21T14:30` (UTC), or of
/// seconds as they are.
pub fn moment(text: &str) -> Result<u64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    moment_of(text)
        .ok_or_else(|| format!("`{text}` is not a time, e.g. 2026-11-21 or 2026-11-21T14"))
}

fn moment_of(text: &str) -> Option<u64> {
    let (day, time) = text.split_once('T').unwrap_or((text, "0"));
    let mut parts = day.split('-').map(str::parse::<u64>);
    let (year, month, date) = (
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    );
    let mut clock = time.split(':').map(str::parse::<u64>);
    let (hour, minute) = (clock.next()?.ok()?, clock.next().unwrap_or(Ok(0)).ok()?);
    let last = parts.next().is_none() && clock.next().is_none();
    if !last || !(1970..=9999).contains(&year) || hour > 23 || minute > 59 {
        return None;
    }
    // Days of years that begin in March: `when` the other way round.
    let (of_year, years) = match month {
        1 | 2 => (month + 9, year - 1),
        3..=12 => (month - 3, year),
        _ => return None,
    };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (153 * of_year + 2) / 5;
    let seconds = ((days + date).checked_sub(719_469)?) * 86_400 + hour * 3600 + minute * 60;
    // A day that the month does not have comes back as another one.
    when(seconds * 1000)
        .starts_with(&format!("{year:04}-{month:02}-{date:02}"))
        .then_some(seconds)
}

/// A duration of nanoseconds: 3.4 ms.
pub fn nanoseconds(number: u64) -> String {
    scaled(number as f64, 1000.0, &["ns", "us", "ms", "s"])
}

fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && number < 100.0 || number.fract() != 0.0 && number < 10.0);
    let text = format!("{number:.digits$}");
    match units[unit] {
        "" => text,
        name => format!("{text} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_204), "1,204");
        assert_eq!(grouped(12_345_678), "12,345,678");
        assert_eq!(rate(0.0), "0");
        assert_eq!(rate(950.0), "950");
        assert_eq!(rate(1_234_567.0), "1.2 M");
        assert_eq!(bytes(5 << 20), "5.0 MiB");
        assert_eq!(nanoseconds(3_400_000), "3.4 ms");
        assert_eq!(nanoseconds(7_000_000_000_000), "7000 s");
    }

    #[test]
    fn times_are_utc() {
        // Each as `date -u -d @SECONDS` has it.
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_767_225_599, "2025-12-31 23:59:59"),
            (1_795_283_045, "2026-11-21 17:44:05"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(when(seconds * 1000 + 7), format!("{text}.007"));
        }
    }

    #[test]
    fn moments_are_read_as_they_are_written() {
        for seconds in [0, 951_782_400, 951_868_800, 1_767_222_000, 4_107_542_400] {
            let text = when(seconds * 1000);
            let (day, time) = text.split_once(' ').unwrap();
            assert_eq!(
                moment(&format!("{day}T{}", &time[..5])),
                Ok(seconds),
                "{text}"
            );
            assert_eq!(moment(day), Ok(seconds / 86_400 * 86_400));
            assert_eq!(moment(&seconds.to_string()), Ok(seconds));
        }
        for wrong in [
            "",
            "2026-13-01",
            "2026-02-29",
            "2026-01-00",
            "2026-01-01T24",
            "1969-01-01",
            "2026-01-01T1:60",
        ] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", ">N"]);
        table.row(["a".into(), "10".into()]);
        table.row(["long".into(), "7".into()]);
        assert_eq!(table.to_string(), "NAME   N\na     10\nlong   7\n");
    }
}
