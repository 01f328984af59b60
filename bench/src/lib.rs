//! What the benchmarks share: a table with the bar beside each number, whose cores were busy, and a short mode.

pub mod cores;

/// True if everything is done, but as little of it as there can be, and no bar counts: `PROMETHEAN_BENCH_SHORT` is set.
/// The tests run the benchmarks so, with the dev build.
pub fn short() -> bool {
    std::env::var_os("PROMETHEAN_BENCH_SHORT").is_some_and(|value| !value.is_empty())
}

/// The first, or the second in a short run.
pub fn sized<T>(full: T, few: T) -> T {
    if short() { few } else { full }
}

/// Says what is measured. A short run says first that it measures nothing.
pub fn begin(what: &str) {
    if short() {
        println!("a short run: it shows that this benchmark works, its numbers mean nothing");
    }
    println!("{what}");
}

/// Ends the process: with an error where a bar was missed, unless the run was a short one.
pub fn end(ok: bool) -> ! {
    std::process::exit(i32::from(!ok && !short()));
}

/// Prints one measurement beside the bar it has to reach. Returns whether it did.
pub fn report(name: &str, value: f64, unit: &str, bar: Bar) -> bool {
    let (met, shown) = match bar {
        Bar::AtLeast(bar) => (value >= bar, format!("≥ {}", number(bar))),
        Bar::AtMost(bar) => (value <= bar, format!("≤ {}", number(bar))),
    };
    println!("{name:<64} {:>14} {unit:<10} bar {shown:<12} {}", number(value), if met { "ok" } else { "MISSED" });
    met
}

/// What a number has to be.
#[derive(Debug, Clone, Copy)]
pub enum Bar {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

fn number(value: f64) -> String {
    if value >= 1_000.0 {
        let digits = format!("{value:.0}");
        let grouped: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().map(|chunk| std::str::from_utf8(chunk).unwrap_or("")).collect();
        grouped.join(",")
    } else {
        format!("{value:.2}")
    }
}

/// The middle of three or more runs.
pub fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}
