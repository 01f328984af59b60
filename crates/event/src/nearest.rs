//! The known name that a misspelt one stands for.

/// The known name that is most like `name`, if any is: the first of those that are alike. Case, `_` and `-` do not count.
pub fn nearest<T: AsRef<str>>(name: &str, known: impl Iterator<Item = T>) -> Option<T> {
    let plain = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    let wanted = plain(name);
    let likeness = |known: &str| {
        // Two letters swapped in a short name count for much in one measure, and for little in the other.
        let slip = wanted.len() > 2 && strsim::osa_distance(&wanted, known) == 1;
        strsim::jaro_winkler(&wanted, known).max(if slip { 0.9 } else { 0.0 })
    };
    let rated = known.map(|known| (likeness(&plain(known.as_ref())), known));
    let best = rated.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.filter(|(likeness, _)| *likeness > 0.8).map(|(_, known)| known)
}
