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
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", ">N"]);
        table.row(["a".into(), "10".into()]);
        table.row(["long".into(), "7".into()]);
        assert_eq!(table.to_string(), "NAME   N\na     10\nlong   7\n");
    }
}
