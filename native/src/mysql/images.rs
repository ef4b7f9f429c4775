//! Walks over the row images of a binary log: where each value is.
//!
//! An image is a bitmap of NULLs, one bit for each column that it has, and the values one after the
//! other (MySQL: sql/rpl_record.cc). Invariant: nothing outside of an event is read; an image that
//! does not end where its event ends is reported, never guessed at.

use crate::memory::{Rows, RowsMut};

/// The length of a value that is NULL.
pub const NULL: i64 = -1;
/// The length of a value that the image does not have.
pub const ABSENT: i64 = -2;

/// The columns of a table on the wire.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    /// Bytes of each value; minus the bytes of its length if that varies.
    pub widths: &'a [i64],
    /// Two rows: which columns an image has, by turns (an update has two images a row).
    pub present: Rows<'a, bool>,
    /// Where a column is in starts and lengths, or -1.
    pub slots: &'a [i64],
}

/// Where values are: a row of columns for each image.
pub struct Places<'a, 'b> {
    /// Where each value starts.
    pub starts: &'a mut RowsMut<'b, i64>,
    /// How long it is, NULL or ABSENT.
    pub lengths: &'a mut RowsMut<'b, i64>,
}

/// Find the values of the images in data[begin..end]; return the number of images before `end`, or
/// None if the event is broken.
///
/// image: number of the first one; those beyond `places` are only counted.
pub fn walk(
    data: &[u8],
    begin: usize,
    end: usize,
    columns: Columns<'_>,
    places: &mut Places<'_, '_>,
    image: usize,
) -> Option<usize> {
    let bits = |turn| columns.present.row(turn).iter().filter(|&&is_present| is_present).count();
    let bits = [bits(0), bits(1)];
    let data = data.get(..end)?;
    let (mut at, mut image, mut turn) = (begin, image, 0);
    while at < end {
        // Images without columns take no bytes: there would be no end of them.
        if bits == [0, 0] {
            return None;
        }
        at = walk_image(data, at, columns, turn, bits[turn], places, image)?;
        image += 1;
        turn = 1 - turn;
    }
    Some(image)
}

/// Find the values of one image; return what is after it.
#[inline]
fn walk_image(
    data: &[u8],
    at: usize,
    columns: Columns<'_>,
    turn: usize,
    bits: usize,
    places: &mut Places<'_, '_>,
    image: usize,
) -> Option<usize> {
    let nulls = data.get(at..at + bits.div_ceil(8))?;
    let mut at = at + nulls.len();
    let mut bit = 0;
    let is_kept = image < places.starts.len();
    let each = columns.widths.iter().zip(columns.present.row(turn)).zip(columns.slots);
    for ((&width, &is_present), &slot) in each {
        let (mut start, mut length) = (at, ABSENT);
        if is_present {
            if nulls[bit / 8] >> (bit % 8) & 1 != 0 {
                length = NULL;
            } else {
                let size = if width < 0 {
                    let size = little_endian(data.get(at..)?.get(..-width as usize)?)?;
                    at += -width as usize;
                    start = at;
                    size
                } else {
                    width as u64
                };
                if size > (data.len() - at) as u64 {
                    return None;
                }
                at += size as usize;
                length = size as i64;
            }
            bit += 1;
        }
        if slot >= 0 && is_kept {
            places.starts.row(image)[slot as usize] = start as i64;
            places.lengths.row(image)[slot as usize] = length;
        }
    }
    Some(at)
}

#[inline]
fn little_endian(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{all_bytes, try_with};

    const WIDTHS: [i64; 4] = [4, -1, 0, -2];

    fn found(data: &[u8], present: &[bool]) -> (Option<usize>, Vec<i64>, Vec<i64>) {
        let (mut starts, mut lengths) = (vec![0; 8], vec![0; 8]);
        let columns =
            Columns { widths: &WIDTHS, present: Rows::new(present, 4), slots: &[0, 1, -1, 3] };
        let mut places = Places {
            starts: &mut RowsMut::new(&mut starts, 4),
            lengths: &mut RowsMut::new(&mut lengths, 4),
        };
        let image = walk(data, 0, data.len(), columns, &mut places, 0);
        (image, starts, lengths)
    }

    #[test]
    fn the_second_image_of_an_update_may_have_other_columns() {
        let present = [true, true, true, true, false, true, false, false];
        let image = b"\x02abcd\x03\0xyz\x00\x02hi";
        let (image, starts, lengths) = found(image, &present);
        assert_eq!(image, Some(2));
        assert_eq!(starts[..4], [1, 5, 0, 7]);
        assert_eq!(lengths, [4, NULL, 0, 3, ABSENT, 2, 0, ABSENT]);
    }

    #[test]
    fn an_image_that_does_not_end_with_its_event_is_broken() {
        let whole = b"\x02abcd\x03\0xyz";
        assert_eq!(found(whole, &[true; 8]).0, Some(1));
        for size in 1..whole.len() {
            assert_eq!(found(&whole[..size], &[true; 8]).0, None, "{size}");
        }
    }

    #[test]
    fn images_without_columns_have_an_end() {
        assert_eq!(found(b"x", &[false; 8]).0, None);
        assert_eq!(found(b"", &[false; 8]).0, Some(0));
    }

    #[test]
    fn no_bytes_of_an_event_panic() {
        let samples: [&[u8]; 2] = [b"\x02abcd\x03\0xyz\x00\x02hi", b"\x0F\x0F\x0F"];
        try_with(&samples, &all_bytes(), |bytes| {
            for present in [[true; 8], [true, false, true, true, false, true, false, false]] {
                let (_, starts, lengths) = found(bytes, &present);
                crate::mysql::values::gather(bytes, &starts, &lengths);
            }
        });
    }
}
