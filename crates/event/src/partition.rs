//! Which partition an event belongs to: `jump(xxh3_64(key or id), partitions)`.

use xxhash_rust::xxh3::xxh3_64;

/// Partitions of a topic that nobody set otherwise.
pub const DEFAULT_PARTITIONS: u32 = 16;

/// The partition of `key` (or of the id's lower-case text) among `partitions`.
pub fn partition_of(key_or_id: &str, partitions: u32) -> u32 {
    jump(xxh3_64(key_or_id.as_bytes()), partitions)
}

/// Jump consistent hash (Lamping and Veach, 2014).
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn jump(mut hash: u64, buckets: u32) -> u32 {
    let (mut bucket, mut next) = (-1_i64, 0_i64);
    while next < i64::from(buckets.max(1)) {
        bucket = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * ((1_u64 << 31) as f64 / ((hash >> 33) + 1) as f64)) as i64;
    }
    bucket as u32
}

#[cfg(test)]
mod tests {
    use super::jump;

    #[test]
    fn jump_gives_the_published_values() {
        // From the reference implementation's tests (dgryski/go-jump).
        for (hash, buckets, expected) in
            [(1, 1, 0), (42, 57, 43), (0xDEAD_10CC, 1, 0), (0xDEAD_10CC, 666, 361), (256, 1024, 520)]
        {
            assert_eq!(jump(hash, buckets), expected, "{hash} over {buckets}");
        }
    }

    #[test]
    fn growing_moves_keys_only_to_the_new_bucket() {
        for hash in (0..2_000_u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
            let (before, after) = (jump(hash, 16), jump(hash, 17));
            assert!(after == before || after == 16, "{hash}: {before} to {after}");
        }
    }
}
