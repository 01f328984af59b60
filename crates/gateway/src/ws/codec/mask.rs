//! The masking of client frames.

/// Applies `key` to `bytes`, eight at a time. Doing it twice changes nothing.
pub(super) fn apply(bytes: &mut [u8], key: [u8; 4]) {
    let [a, b, c, d] = key;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(key.into_iter().cycle()) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_meets_its_own_byte_of_the_key(bytes in proptest::collection::vec(any::<u8>(), 0..100), key: [u8; 4]) {
            let mut masked = bytes.clone();
            super::apply(&mut masked, key);
            let naive: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect();
            prop_assert_eq!(&masked, &naive);
        }
    }
}
