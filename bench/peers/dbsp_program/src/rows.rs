//! Generated rows: a folder with an `.npy` file a column (bench/generate.py).

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

const BLOCK_ROWS: usize = 50_000;

/// One column on disk: int64, or a byte a row.
struct Column {
    file: File,
    start: u64,
    width: usize,
    rows: usize,
}

impl Column {
    fn open(path: &Path) -> Result<Column> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        // Magic number, version, and the length of the header that follows.
        let mut prefix = [0; 10];
        file.read_exact(&mut prefix)?;
        ensure!(prefix[..8] == *b"\x93NUMPY\x01\x00", "{} is no array", path.display());
        let mut header = vec![0; usize::from(u16::from_le_bytes([prefix[8], prefix[9]]))];
        file.read_exact(&mut header)?;
        let start = (prefix.len() + header.len()) as u64;
        let width = match String::from_utf8(header)? {
            text if text.contains("'<i8'") => 8,
            text if text.contains("'|u1'") => 1,
            text => bail!("{}: {text}", path.display()),
        };
        let rows = (file.metadata()?.len() - start) as usize / width;
        Ok(Column { file, start, width, rows })
    }

    /// Read rows from `low` on into every `step`th of the values.
    fn read(&self, low: usize, values: &mut [i64], step: usize) -> Result<()> {
        let mut bytes = vec![0; values.len().div_ceil(step) * self.width];
        self.file.read_exact_at(&mut bytes, self.start + (low * self.width) as u64)?;
        let cells = bytes.chunks_exact(self.width);
        for (value, cell) in values.iter_mut().step_by(step).zip(cells) {
            *value = match cell.try_into() {
                Ok(cell) => i64::from_le_bytes(cell),
                Err(_) => i64::from(cell[0]),
            };
        }
        Ok(())
    }
}

/// Rows in order, read in blocks.
pub struct Rows {
    columns: Vec<Column>,
    block: Vec<i64>,
    block_end: usize,
    at: usize,
}

impl Rows {
    pub fn open(folder: &Path, names: &[&str]) -> Result<Rows> {
        let open = |name: &&str| Column::open(&folder.join(format!("{name}.npy")));
        let columns = names.iter().map(open).collect::<Result<Vec<_>>>()?;
        Ok(Rows { columns, block: Vec::new(), block_end: 0, at: 0 })
    }

    /// The next row, a value a column; None at the end.
    pub fn next(&mut self) -> Result<Option<&[i64]>> {
        self.next_below(i64::MAX)
    }

    /// The next row if the value of its first column is below `before`; None at the end too.
    pub fn next_below(&mut self, before: i64) -> Result<Option<&[i64]>> {
        let width = self.columns.len();
        if self.at == self.block_end && !self.read_block()? {
            return Ok(None);
        }
        let row = self.block.len() - (self.block_end - self.at) * width;
        if self.block[row] >= before {
            return Ok(None);
        }
        self.at += 1;
        Ok(Some(&self.block[row..row + width]))
    }

    /// Read the next block; false at the end.
    fn read_block(&mut self) -> Result<bool> {
        let width = self.columns.len();
        let count = BLOCK_ROWS.min(self.columns[0].rows - self.at);
        if count == 0 {
            return Ok(false);
        }
        self.block.resize(count * width, 0);
        for (number, column) in self.columns.iter().enumerate() {
            column.read(self.at, &mut self.block[number..], width)?;
        }
        self.block_end += count;
        Ok(true)
    }
}
