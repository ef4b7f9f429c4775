//! Columns of byte strings, to be read and to be made.

/// A column of byte strings: string i is data[offsets[i]..offsets[i + 1]].
#[derive(Clone, Copy)]
pub struct Strings<'a> {
    offsets: &'a [i64],
    data: &'a [u8],
}

impl<'a> Strings<'a> {
    /// The column of offsets, one more than strings, and bytes.
    pub fn new(offsets: &'a [i64], data: &'a [u8]) -> Self {
        Strings { offsets, data }
    }

    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// One string.
    #[inline]
    pub fn get(&self, i: usize) -> &'a [u8] {
        string(self.offsets, self.data, i)
    }

    /// All strings.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let data = self.data;
        self.offsets.windows(2).map(move |ends| &data[ends[0] as usize..ends[1] as usize])
    }

    /// Parse each string that is not NULL: the values, and the first row that is not of the type,
    /// or -1. Values of NULLs and from that row on are 0.
    #[inline]
    pub fn parse<T: Copy + Default>(
        &self,
        valid: &[bool],
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> (Vec<T>, i64) {
        let mut out = vec![T::default(); self.len()];
        for (i, (to, ends)) in out.iter_mut().zip(self.offsets.windows(2)).enumerate() {
            if is_null(valid, i) {
                continue;
            }
            match parse(&self.data[ends[0] as usize..ends[1] as usize]) {
                Some(value) => *to = value,
                None => return (out, i as i64),
            }
        }
        (out, -1)
    }
}

/// String `i` of a column.
#[inline]
pub fn string<'a>(offsets: &[i64], data: &'a [u8], i: usize) -> &'a [u8] {
    &data[offsets[i] as usize..offsets[i + 1] as usize]
}

/// Copy bytes to the begin of others, short ones without a call; return what is after them.
#[inline]
pub fn put<'a>(out: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let (to, rest) = out.split_at_mut(bytes.len());
    match bytes.len() {
        0..4 => to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte),
        4..8 => put_ends::<4>(to, bytes),
        8..=16 => put_ends::<8>(to, bytes),
        _ => to.copy_from_slice(bytes),
    }
    rest
}

/// Copy N to 2 N bytes by their first and last N.
#[inline]
fn put_ends<const N: usize>(to: &mut [u8], bytes: &[u8]) {
    let last = bytes.len() - N;
    to[..N].copy_from_slice(&bytes[..N]);
    to[last..].copy_from_slice(&bytes[last..]);
}

/// Whether a row is NULL; an empty `valid` means that none is.
#[inline]
pub fn is_null(valid: &[bool], i: usize) -> bool {
    !valid.is_empty() && !valid[i]
}

/// Print each value that is not NULL, of at most about `width` bytes.
#[inline]
pub fn print<T: Copy>(
    values: &[T],
    valid: &[bool],
    width: usize,
    put: impl Fn(&mut Vec<u8>, T),
) -> (Vec<i64>, Vec<u8>) {
    print_rows(values.len(), valid, width * values.len(), |out, i| put(out, values[i]))
}

/// Print each of n rows that is not NULL, all in about so many bytes.
#[inline]
pub fn print_rows(
    n: usize,
    valid: &[bool],
    bytes: usize,
    mut put: impl FnMut(&mut Vec<u8>, usize),
) -> (Vec<i64>, Vec<u8>) {
    let mut offsets = vec![0; n + 1];
    let mut data = Vec::with_capacity(bytes);
    for (i, end) in offsets[1..].iter_mut().enumerate() {
        if !is_null(valid, i) {
            put(&mut data, i);
        }
        *end = data.len() as i64;
    }
    data.shrink_to_fit();
    (offsets, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_no_value_ends_the_parse() {
        let texts = Strings::new(&[1, 2, 4, 5, 6], b"x1zz23");
        let parse = |text: &[u8]| (text[0] != b'3').then(|| i64::from(text[0] - b'0'));
        let (values, row) = texts.parse(&[true, false, true, true], parse);
        assert_eq!((values, row), (vec![1, 0, 2, 0], 3));
    }

    #[test]
    fn nulls_are_printed_as_nothing() {
        let found = print(&[1u8, 2, 3], &[true, false, true], 1, |out, value| out.push(value));
        assert_eq!(found, (vec![0, 1, 1, 2], vec![1, 3]));
    }
}
