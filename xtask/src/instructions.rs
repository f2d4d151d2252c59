//! How many instructions a product of two codes takes on Arm, counted in an emulator: what is known of the speed where no
//! such machine is at hand, and the same in every run.

use crate::arm;
use crate::emulator::Emulator;
use crate::runner::program;
use anyhow::{Context, Result, bail};
use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the counts are kept: a table in Markdown with an ISA a column.
const TABLE: &str = "docs/arm-instructions.md";

/// The ISAs that are counted, and on which CPU.
const COLUMNS: [(&str, &str); 5] = [
    ("neon", "cortex-a53"),
    ("neon-dotprod", "cortex-a76"),
    ("neon-i8mm", "max,sme=off"),
    ("sme", "max,sve=off,sme=on,sme_fa64=off,sme512=on"),
    ("sme2", "max,sve=off,sme=on,sme_fa64=off,sme512=on"),
];

/// The products, as the program that is counted calls them: format, precision of the rows, number of rows.
const CASES: [&str; 27] = [
    "q4,a8,1",
    "q4,a8,8",
    "q4,a16,1",
    "q4,a16,8",
    "q4m,a8,1",
    "q4m,a8,8",
    "q5,a8,1",
    "q5,a8,8",
    "q8,a8,1",
    "q8,a8,8",
    "q4k,a8,1",
    "q4k,a8,8",
    "q6k,a8,1",
    "q6k,a8,8",
    "q3k,a8,1",
    "q3k,a8,8",
    "mxfp4,a8,1",
    "mxfp4,a8,8",
    "c4,a8,1",
    "c4,a8,8",
    "c8,a8,1",
    "c8,a8,8",
    "q4,a8,16",
    "q4,a16,16",
    "q4m,a8,16",
    "c4,a8,16",
    "p4,a8,16",
];
/// Those that every test counts.
const FEW: [&str; 4] = ["q4,a8,1", "q4,a8,8", "q8,a8,1", "q6k,a8,1"];

/// How far a count may be from the table: compilers differ.
const TOLERANCE: f64 = 0.02;

/// Instructions a multiplication, by case and ISA.
type Counts = BTreeMap<(String, String), f64>;

/// Counts all that an emulator is here for, prints it and compares it with the table, or writes it there.
pub fn bench(update: bool) -> Result<()> {
    let counts = count(&CASES)?;
    let path = crate::root().join(TABLE);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {TABLE}"))?;
    let recorded = read(&text);
    let mut all = recorded.clone();
    all.extend(counts.clone());
    let table = write(&all);
    print!("{table}");
    if update {
        let above = text.find("\n|").map_or(&*text, |end| &text[..end]);
        std::fs::write(&path, format!("{}\n\n{table}", above.trim_end()))?;
        println!("written to {TABLE}");
        return Ok(());
    }
    compare(&recorded, &counts)
}

/// The check of `cargo xtask test`.
pub fn check() -> Result<()> {
    let text = std::fs::read_to_string(crate::root().join(TABLE))?;
    compare(&read(&text), &count(&FEW)?)
}

/// An error that names all counts that are not those of the table.
fn compare(recorded: &Counts, counts: &Counts) -> Result<()> {
    let mut differences = String::new();
    for ((case, isa), count) in counts {
        let key = (case.clone(), isa.clone());
        match recorded.get(&key) {
            Some(before) if (count / before - 1.0).abs() <= TOLERANCE => {}
            Some(before) => writeln!(differences, "{case} on {isa}: {before} became {count:.4}")?,
            None => writeln!(differences, "{case} on {isa}: {count:.4} is new")?,
        }
    }
    if !differences.is_empty() {
        bail!(
            "{differences}these are not the instructions of {TABLE}; if they are meant to be, \
             run `cargo xtask bench arm --update`"
        );
    }
    Ok(())
}

/// Counts some cases on every ISA that an emulator is here for.
fn count(cases: &[&str]) -> Result<Counts> {
    let binary = arm::built_unit_tests()?;
    let symbols = Symbols::read(Path::new(&binary))?;
    let mut counts = Counts::new();
    let emulator = Emulator::find().context("there is no emulator of Arm here")?;
    for (isa, cpu) in COLUMNS {
        if isa.contains("sme") && !emulator.knows_sme() {
            println!("{isa}: the emulator that is here does not know it");
            continue;
        }
        let cases: Vec<&str> = cases.iter().copied().filter(|case| is_counted(isa, case)).collect();
        let mut command =
            program(&emulator.program, &["-cpu", cpu, one_at_a_time(emulator), "-d", "exec,nochain"]);
        command.args(["-dfilter", &symbols.filter, &binary]);
        command.args(["kernels::counted::", "--nocapture", "--test-threads=1"]);
        command.env("LOWBIT_COUNTED", format!("{isa} {}", cases.join(" ")));
        let found = trace(command, symbols.mark).with_context(|| format!("counting {isa} on {cpu}"))?;
        if found.len() != cases.len() {
            bail!("{} of {} products of {isa} were counted", found.len(), cases.len());
        }
        for (case, count) in cases.iter().zip(found) {
            counts.insert(((*case).to_owned(), isa.to_owned()), count);
        }
    }
    Ok(counts)
}

/// Matrix engines are for many rows, which take the others too long to count.
fn is_counted(isa: &str, case: &str) -> bool {
    isa.contains("sme") || !case.ends_with(",16")
}

/// The option of an emulator that executes, and so reports, every instruction on its own.
fn one_at_a_time(emulator: &Emulator) -> &'static str {
    let help = crate::runner::ask(&emulator.program, &["-help"]).unwrap_or_default();
    if help.contains("one-insn-per-tb") { "-one-insn-per-tb" } else { "-singlestep" }
}

/// Runs a traced program: the instructions a multiplication between every two of its calls of the function at `mark`.
fn trace(mut command: Command, mark: u64) -> Result<Vec<f64>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stderr = child.stderr.take().context("no trace")?;
    let mut counts = Vec::new();
    let (mut counting, mut others) = (None, String::new());
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        match address(&line) {
            Some(at) if at == mark => match counting.take() {
                None => counting = Some(0_u64),
                Some(count) => counts.push(count),
            },
            Some(_) => counting = counting.map(|count| count + 1),
            None => others = others + &line + "\n",
        }
    }
    // What it prints is short: it waits for nobody to read it.
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("the program failed\n{text}{others}");
    }
    let multiplications = text.lines().filter_map(|line| line.strip_prefix("multiplications ")?.parse().ok());
    Ok(counts.into_iter().zip(multiplications).map(|(count, of): (u64, f64)| count as f64 / of).collect())
}

/// The address of a line of a trace: `Trace 0: 0x7f39 [01009331/003c41c0/00000001/00000201] name`.
fn address(line: &str) -> Option<u64> {
    let fields = line.strip_prefix("Trace ")?.split_once('[')?.1;
    u64::from_str_radix(fields.split('/').nth(1)?, 16).ok()
}

/// Where the program is looked at.
struct Symbols {
    /// The kernels, as the emulator wants them.
    filter: String,
    /// The function between whose calls is counted.
    mark: u64,
}

impl Symbols {
    fn read(binary: &Path) -> Result<Self> {
        let data = std::fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
        let file = object::File::parse(&*data)?;
        let (mut ranges, mut mark) = (Vec::new(), None);
        for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.is_definition()) {
            let Ok(name) = symbol.name() else { continue };
            let is_mark = name.contains("count_from_or_to_here");
            if is_mark {
                mark = Some(symbol.address());
            }
            if symbol.size() > 0 && (is_mark || is_kernel(name)) {
                ranges.push(format!("{:#x}+{:#x}", symbol.address(), symbol.size()));
            }
        }
        let mark = mark.with_context(|| format!("{} has no mark to count from", binary.display()))?;
        Ok(Self { filter: ranges.join(","), mark })
    }
}

/// Kernels are functions of their own for every ISA; what else they call is in the module of products, or copies.
fn is_kernel(symbol: &str) -> bool {
    let parts = ["outlined", "with_features", "matmul"];
    parts.iter().any(|part| symbol.contains(part)) || ["memcpy", "memset", "memmove"].contains(&symbol)
}

/// The counts of a table.
fn read(text: &str) -> Counts {
    let mut rows = text.lines().filter_map(|line| {
        let cells = line.strip_prefix('|')?.strip_suffix('|')?;
        Some(cells.split('|').map(str::trim).collect::<Vec<_>>())
    });
    let mut counts = Counts::new();
    let Some(head) = rows.next() else { return counts };
    for row in rows {
        for (isa, cell) in head.iter().zip(&row).skip(3) {
            if let Ok(count) = cell.parse() {
                counts.insert((row[..3].join(","), (*isa).to_owned()), count);
            }
        }
    }
    counts
}

/// The table of counts.
fn write(counts: &Counts) -> String {
    let isas = COLUMNS.map(|(isa, _)| isa);
    let mut lines = vec![format!("| format | activations | rows | {} |", isas.join(" | "))];
    lines.push(format!("|{}", "---|".repeat(3 + isas.len())));
    for case in CASES {
        let cells = isas.map(|isa| match counts.get(&(case.to_owned(), isa.to_owned())) {
            Some(count) => format!("{count:.4}"),
            None => "-".to_owned(),
        });
        lines.push(format!("| {} | {} |", case.replace(',', " | "), cells.join(" | ")));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(value: f64) -> Counts {
        Counts::from([(("q4,a8,1".to_owned(), "neon".to_owned()), value)])
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let text = format!("# Title\n\nWords.\n\n{}", write(&counts(0.25)));
        assert_eq!(read(&text), counts(0.25));
        assert!(text.contains("| q4 | a8 | 1 | 0.2500 | - | - | - | - |"), "{text}");
        assert!(read("# Title\n").is_empty());
    }

    #[test]
    fn counts_that_changed_or_are_new_are_errors() {
        assert!(compare(&counts(0.25), &counts(0.2549)).is_ok());
        for (recorded, counted) in [(counts(0.25), 0.256), (counts(0.25), 0.244), (Counts::new(), 0.25)] {
            let error = compare(&recorded, &counts(counted)).map_err(|e| e.to_string());
            assert!(error.is_err_and(|e| e.contains("q4,a8,1 on neon") && e.contains("--update")));
        }
    }

    #[test]
    fn every_test_counts_cases_of_the_table() {
        assert!(FEW.iter().all(|case| CASES.contains(case)));
    }

    #[test]
    fn addresses_of_a_trace_are_read() {
        let line = "Trace 0: 0x7f3908002b00 [0000000001009331/00000000003c41c0/00000001/00000201] memset";
        assert_eq!(address(line), Some(0x3c_41c0));
        assert_eq!(address("running 1 test"), None);
    }
}
