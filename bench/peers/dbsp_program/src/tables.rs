//! Tables as inputs of a circuit: their initial rows, and changes with old rows or by key.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use dbsp::operator::Update;
use dbsp::utils::Tup2;
use dbsp::{DBData, MapHandle, OrdIndexedZSet, RootCircuit, Stream, ZSetHandle, ZWeight};

use crate::rows::Rows;

const INSERT: i64 = b'I' as i64;
const OLD: i64 = b'O' as i64;
const DELETE: i64 = b'D' as i64;

/// The folder of the rows, the words for which the numbers of each text column stand, and whether
/// updates and deletes arrive with their whole old rows; else by key, as upserts and deletes.
#[derive(Clone)]
pub struct Source {
    pub folder: PathBuf,
    pub words: HashMap<String, Vec<String>>,
    pub has_old_rows: bool,
}

/// A table, whatever its rows are.
pub trait Input: Send {
    /// Take at most `limit` initial rows; return how many.
    fn read_load(&mut self, limit: usize) -> Result<usize>;
    /// Take the changes numbered below `before`; return how many, an update being one.
    fn read_changes(&mut self, before: i64) -> Result<usize>;
    /// Hand what was taken over to the circuit.
    fn push(&mut self);
}

/// How rows enter the circuit, with those that wait for the next epoch.
enum Entry<V: DBData> {
    /// Rows with weights; the circuit does not store the table.
    Whole(ZSetHandle<Tup2<i64, V>>, Vec<Tup2<Tup2<i64, V>, ZWeight>>),
    /// The circuit stores the table to find the old rows.
    Keyed(MapHandle<i64, V, V>, Vec<Tup2<i64, Update<V, V>>>),
}

/// A table whose first column is its key; V has the others.
struct Table<V: DBData> {
    entry: Entry<V>,
    value_of: Box<dyn Fn(&[i64]) -> V + Send>,
    load: Option<Rows>,
    changes: Option<Rows>,
}

impl Source {
    /// Add a table to a circuit: the stream of its rows as `project` selects them, and its input.
    ///
    /// `names` are of its columns, the key first; `value_of` makes V of the other columns.
    pub fn table<V: DBData, K2: DBData, V2: DBData>(
        &self,
        circuit: &RootCircuit,
        (name, names): (&str, &[&str]),
        value_of: impl Fn(&[i64]) -> V + Send + 'static,
        project: impl Fn(i64, &V) -> Option<(K2, V2)> + 'static,
    ) -> Result<(Stream<RootCircuit, OrdIndexedZSet<K2, V2>>, Box<dyn Input>)> {
        let changed = [["seq", "kind"].as_slice(), names].concat();
        let load = open_if_there(&self.folder, &format!("{name}.load"), names)?;
        let changes = open_if_there(&self.folder, &format!("{name}.changes"), &changed)?;
        let (stream, entry) = if self.has_old_rows || changes.is_none() {
            let (rows, handle) = circuit.add_input_zset::<Tup2<i64, V>>();
            let stream = rows.flat_map_index(move |Tup2(key, value)| project(*key, value));
            (stream, Entry::Whole(handle, Vec::new()))
        } else {
            let (rows, handle) = circuit.add_input_map::<i64, V, V, _>(|v, new| *v = new.clone());
            let stream = rows.flat_map_index(move |(key, value)| project(*key, value));
            (stream, Entry::Keyed(handle, Vec::new()))
        };
        let value_of = Box::new(value_of);
        Ok((stream, Box::new(Table { entry, value_of, load, changes })))
    }

    /// The word for which a number of a text column stands.
    pub fn texts(&self, column: &str) -> impl Fn(i64) -> String + Send + use<> {
        let words = self.words.get(column).cloned().unwrap_or_default();
        move |number| words[number as usize].clone()
    }
}

fn open_if_there(folder: &Path, part: &str, names: &[&str]) -> Result<Option<Rows>> {
    let folder = folder.join(part);
    folder.exists().then(|| Rows::open(&folder, names)).transpose()
}

impl<V: DBData> Input for Table<V> {
    fn read_load(&mut self, limit: usize) -> Result<usize> {
        let mut count = 0;
        while let Some(rows) = &mut self.load
            && count < limit
            && let Some(row) = rows.next()?
        {
            self.entry.add(INSERT, row, &self.value_of);
            count += 1;
        }
        Ok(count)
    }

    fn read_changes(&mut self, before: i64) -> Result<usize> {
        let mut count = 0;
        while let Some(rows) = &mut self.changes
            && let Some([_, kind, row @ ..]) = rows.next_below(before)?
        {
            self.entry.add(*kind, row, &self.value_of);
            count += usize::from(*kind != OLD);
        }
        Ok(count)
    }

    fn push(&mut self) {
        match &mut self.entry {
            Entry::Whole(handle, waiting) => handle.append(waiting),
            Entry::Keyed(handle, waiting) => handle.append(waiting),
        }
    }
}

impl<V: DBData> Entry<V> {
    fn add(&mut self, kind: i64, row: &[i64], value_of: impl Fn(&[i64]) -> V) {
        let (key, others) = (row[0], &row[1..]);
        match self {
            Entry::Whole(_, waiting) => {
                let weight = if kind == OLD || kind == DELETE { -1 } else { 1 };
                waiting.push(Tup2(Tup2(key, value_of(others)), weight));
            }
            Entry::Keyed(..) if kind == OLD => {}
            Entry::Keyed(_, waiting) if kind == DELETE => waiting.push(Tup2(key, Update::Delete)),
            Entry::Keyed(_, waiting) => waiting.push(Tup2(key, Update::Insert(value_of(others)))),
        }
    }
}
