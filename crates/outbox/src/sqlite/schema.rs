//! The table of the outbox, its indexes, and every statement on it.

use std::fmt::Write as _;

use rusqlite::Connection;

use crate::{Error, Result, Schema};

/// A column with the time of the insert. Whoever inserts by its own SQL may have an old SQLite: `unixepoch('subsec')` is
/// nothing before 3.42.
const TIME: &str = "INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER))";
/// The time, as [`TIME`] has it.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)";

/// The columns, with what a missing one is to be added as.
const COLUMNS: [(&str, &str); 16] = [
    // The order in which rows were added: SQLite has one writer at a time.
    ("seq", "INTEGER PRIMARY KEY"),
    ("id", "TEXT NOT NULL UNIQUE"),
    ("topic", "TEXT NOT NULL"),
    ("key", "TEXT"),
    // JSON, byte for byte.
    ("payload", "TEXT NOT NULL"),
    // A JSON object of strings, and two JSON arrays of strings.
    ("headers", "TEXT"),
    ("tags", "TEXT"),
    ("caused_by", "TEXT"),
    ("sid", "TEXT"),
    ("ts", TIME),
    ("status", "TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'claimed', 'sent', 'error'))"),
    ("claimed_by", "TEXT"),
    ("lease_until", "INTEGER"),
    ("attempts", "INTEGER NOT NULL DEFAULT 0"),
    ("last_err", "TEXT"),
    ("added", TIME),
];

/// The columns of a row, in the order in which `row.rs` reads them.
const READ: &str = "seq, id, topic, key, payload, headers, tags, caused_by, sid, ts, status, claimed_by, lease_until, \
    attempts, last_err";

/// Every statement on one table. Times are epoch milliseconds.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) table: String,
    pub(super) add: String,
    pub(super) is_due: String,
    pub(super) claim: String,
    pub(super) park: String,
    pub(super) date: String,
    pub(super) extend: String,
    pub(super) mark_sent: String,
    pub(super) mark_error: String,
    pub(super) requeue_expired: String,
    pub(super) purge_sent: String,
    pub(super) stats: String,
    pub(super) list: String,
    pub(super) retry: String,
}

impl Statements {
    pub(super) fn new(table: &str) -> Self {
        // In a column of SQLite there may be anything: what is no time has passed.
        let due = "o.status = 'pending' \
            AND (o.lease_until IS NULL OR typeof(o.lease_until) <> 'integer' OR o.lease_until <= :now) \
            AND (o.key IS NULL OR o.key NOT IN held)";
        // A row of the key that is claimed, or that waits to be tried again, keeps the others back. The keys are read
        // once, not for each row: thousands of rows may wait behind one.
        let held = format!(
            "held AS MATERIALIZED (
               SELECT e.key AS key FROM {table} AS e
               WHERE e.lease_until IS NOT NULL AND e.key IS NOT NULL
                 AND (e.status = 'claimed' OR typeof(e.lease_until) = 'integer' AND e.lease_until > :now)
               UNION SELECT e.key FROM {table} AS e
               WHERE e.status = 'claimed' AND e.lease_until IS NULL AND e.key IS NOT NULL)"
        );
        // Since when a row waits, as far as anybody knows: one whose time is not known hides no other.
        let since = "CASE WHEN typeof(added) = 'integer' THEN added WHEN typeof(ts) = 'integer' THEN ts END";
        Self {
            table: table.to_owned(),
            add: format!(
                "INSERT INTO {table} (id, topic, key, payload, headers, tags, caused_by, sid, ts, added) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
            ),
            is_due: format!("WITH {held} SELECT EXISTS (SELECT 1 FROM {table} AS o WHERE {due})"),
            // In the order they were added. A row of the same key that is merely pending is in this batch too, before the
            // later ones.
            claim: format!(
                "WITH {held},
                 due AS (
                   SELECT o.seq AS seq, coalesce(octet_length(o.payload), 0) AS bytes FROM {table} AS o
                   WHERE {due}
                   ORDER BY o.seq LIMIT :rows),
                 fitting AS (SELECT seq, SUM(bytes) OVER (ORDER BY seq) - bytes AS before FROM due)
                 UPDATE {table}
                 SET status = 'claimed', claimed_by = :worker, lease_until = :until, attempts = attempts + 1
                 WHERE seq IN (SELECT seq FROM fitting WHERE before < :bytes)
                 RETURNING {READ}"
            ),
            park: format!(
                "UPDATE {table} SET status = 'error', last_err = :err, claimed_by = NULL, lease_until = NULL \
                 WHERE seq IN (SELECT value FROM json_each(:seqs))"
            ),
            date: format!("UPDATE {table} SET ts = :now WHERE seq IN (SELECT value FROM json_each(:seqs))"),
            extend: format!(
                "UPDATE {table} SET lease_until = :until \
                 WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'claimed' AND claimed_by = :worker"
            ),
            mark_sent: format!(
                "UPDATE {table} SET status = 'sent', claimed_by = NULL, lease_until = NULL \
                 WHERE id IN (SELECT value FROM json_each(:ids)) AND status <> 'sent'"
            ),
            mark_error: format!(
                "UPDATE {table} SET status = :status, last_err = coalesce(:err, last_err), claimed_by = NULL, \
                 lease_until = :until, attempts = max(attempts - :back, 0) \
                 WHERE id = :id AND status = 'claimed' AND claimed_by = :worker"
            ),
            requeue_expired: format!(
                "UPDATE {table} SET status = 'pending', claimed_by = NULL, lease_until = NULL
                 WHERE seq IN (
                   SELECT seq FROM {table} WHERE lease_until IS NOT NULL AND status = 'claimed'
                     AND (typeof(lease_until) <> 'integer' OR lease_until < :now OR lease_until > :far)
                   UNION ALL SELECT seq FROM {table} WHERE lease_until IS NOT NULL AND status = 'pending'
                     AND typeof(lease_until) = 'integer' AND lease_until > :far
                   UNION ALL SELECT seq FROM {table} WHERE status = 'claimed' AND lease_until IS NULL)"
            ),
            purge_sent: format!(
                "DELETE FROM {table} WHERE seq IN \
                 (SELECT seq FROM {table} WHERE ts < :before AND status = 'sent' ORDER BY ts LIMIT :most)"
            ),
            stats: format!(
                "SELECT (SELECT count(*) FROM {table} WHERE status = 'pending'),
                   (SELECT count(*) FROM {table} WHERE lease_until IS NOT NULL AND status = 'claimed')
                     + (SELECT count(*) FROM {table} WHERE status = 'claimed' AND lease_until IS NULL),
                   (SELECT count(*) FROM {table} WHERE status = 'error'),
                   min((SELECT coalesce(min(since), 9e18) FROM
                          (SELECT {since} AS since FROM {table} WHERE status = 'pending' AND ({since}) IS NOT NULL
                           ORDER BY seq LIMIT 1)),
                       (SELECT coalesce(min({since}), 9e18) FROM {table}
                          WHERE lease_until IS NOT NULL AND status = 'claimed'))"
            ),
            list: format!(
                "SELECT {READ} FROM {table} WHERE :status IS NULL OR status = :status ORDER BY seq LIMIT :limit"
            ),
            retry: format!(
                "UPDATE {table} SET status = 'pending', attempts = 0, claimed_by = NULL, lease_until = NULL \
                 WHERE status = 'error' AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))"
            ),
        }
    }

    /// Makes the table and its indexes where they are missing, or says what is wrong with them.
    pub(super) fn prepare(&self, connection: &Connection, schema: Schema) -> Result<()> {
        let table = &self.table;
        let there = columns(connection, table)?;
        if there.is_empty() && schema == Schema::Require {
            return Err(Error::Schema(format!(
                "there is no table {table}; a service makes it with SqliteOutbox::open, `promethean outbox drain` makes \
                 it too, or by hand:\n{}",
                create(table)
            )));
        }
        let missing: Vec<_> = COLUMNS.iter().filter(|(name, _)| !there.iter().any(|column| column == name)).collect();
        if !there.is_empty() && !missing.is_empty() {
            let mut remedy = String::new();
            for (name, kind) in &missing {
                let _ = match *name {
                    "seq" | "id" => writeln!(remedy, "-- {name} {kind}: it has to be made with the table"),
                    _ => writeln!(remedy, "ALTER TABLE {table} ADD COLUMN {name} {};", addable(kind)),
                };
            }
            return Err(Error::Schema(format!("the table {table} is no outbox, or an old one: it lacks\n{remedy}")));
        }
        if !there.is_empty()
            && let Some(wrong) = self.wrong(connection)?
        {
            return Err(Error::Schema(format!(
                "rows of the table {table} would never be drained: {wrong}; make the table anew and copy the rows:\n{}",
                anew(table, has_rowid(connection, table)?)
            )));
        }
        if schema == Schema::Create {
            connection.execute_batch(&create(table)).map_err(|error| {
                Error::Schema(format!("cannot make the table {table}: {error}; make it by hand:\n{}", create(table)))
            })?;
            self.unique(connection)?;
        }
        Ok(())
    }

    /// What of a table with all the columns keeps rows that are added to it from ever being claimed.
    fn wrong(&self, connection: &Connection) -> Result<Option<&'static str>> {
        let table = &self.table;
        // A key that is not the row's own number has an index, and is NULL where an insert does not say it.
        let is_number = "SELECT (SELECT group_concat(lower(name)) FROM pragma_table_info(?1) WHERE pk > 0) = 'seq' \
                         AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE origin = 'pk')";
        if connection.query_row(is_number, [table], |row| row.get::<_, Option<bool>>(0))? != Some(true) {
            return Ok(Some("seq is no INTEGER PRIMARY KEY, which SQLite counts up by itself"));
        }
        let status = "SELECT \"notnull\", dflt_value FROM pragma_table_info(?1) WHERE lower(name) = 'status'";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, bool>(0)?, row.get::<_, Option<String>>(1)?));
        let (not_null, default) = connection.query_row(status, [table], read)?;
        let default = default.filter(|default| !default.eq_ignore_ascii_case("null"));
        Ok(match default.as_deref().map(|default| default.trim_matches(['(', ')', ' ', '\'', '"'])) {
            // Whoever adds a row without a status is refused.
            None if not_null => None,
            Some("pending") => None,
            None => Some("status may be NULL, and has no default"),
            Some(_) => Some("the default of status is not 'pending'"),
        })
    }

    /// Marks go by the id: where two rows have the same one, what is said of one would be said of both.
    fn unique(&self, connection: &Connection) -> Result<()> {
        let table = &self.table;
        let is_unique = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1) AS i WHERE i.\"unique\" AND NOT i.partial \
                         AND (SELECT group_concat(name) FROM pragma_index_info(i.name)) = 'id')";
        let is_unique = || connection.query_row(is_unique, [table], |row| row.get::<_, bool>(0));
        if is_unique()? {
            return Ok(());
        }
        let make = format!("CREATE UNIQUE INDEX {table}_id ON {table} (id)");
        match connection.execute_batch(&make) {
            // Made meanwhile by another is as good.
            Err(error) if !is_unique()? => Err(Error::Schema(format!(
                "the ids of {table} have to be unique, and cannot be made so: {error}; give each row an id of its own \
                 (SELECT id FROM {table} GROUP BY id HAVING count(*) > 1), then:\n{make}"
            ))),
            _ => Ok(()),
        }
    }
}

/// A column that is added later cannot have an expression as its default, nor be NOT NULL without one: of rows that lack
/// it nobody knows the time, and a constant would be a wrong one.
fn addable(kind: &str) -> String {
    match kind.split_once(" NOT NULL DEFAULT (") {
        Some((plain, _)) => plain.to_owned(),
        None if kind.contains("DEFAULT") => kind.to_owned(),
        None => kind.replace(" NOT NULL", ""),
    }
}

/// True if the table has numbers of its rows, which grow as rows are added.
fn has_rowid(connection: &Connection, table: &str) -> Result<bool> {
    let without = "SELECT EXISTS (SELECT 1 FROM pragma_table_list(?1) WHERE wr OR type <> 'table')";
    Ok(!connection.query_row(without, [table], |row| row.get::<_, bool>(0))?)
}

/// The statements that make a table an outbox whose columns cannot be changed. The old one stays: a statement that fails
/// loses nothing.
fn anew(table: &str, has_rowid: bool) -> String {
    let order = if has_rowid { "rowid" } else { "seq" };
    let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).filter(|name| *name != "seq").collect();
    let value = |name: &&str| match *name {
        // What is no event is parked, with the reason.
        "topic" | "payload" => format!("coalesce({name}, '')"),
        "status" => "coalesce(status, 'pending')".to_owned(),
        "attempts" => "coalesce(attempts, 0)".to_owned(),
        "ts" => format!("coalesce(ts, added, {NOW})"),
        "added" => format!("coalesce(added, ts, {NOW})"),
        name => name.to_owned(),
    };
    let values: Vec<String> = names.iter().map(value).collect();
    let mut out = format!("ALTER TABLE {table} RENAME TO {table}_old;\n");
    for index in ["id", "pending", "held", "unleased", "parked", "ts"] {
        let _ = writeln!(out, "DROP INDEX IF EXISTS {table}_{index};");
    }
    out.push_str(&create(table));
    let _ = writeln!(
        out,
        "INSERT INTO {table} ({})\n  SELECT {}\n  FROM {table}_old ORDER BY {order};\n-- once they are there: DROP TABLE {table}_old;",
        names.join(", "),
        values.join(", ")
    );
    out
}

fn columns(connection: &Connection, table: &str) -> Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let names = statement.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(names)
}

/// The statements that make the table.
fn create(table: &str) -> String {
    let columns: Vec<String> = COLUMNS.iter().map(|(name, kind)| format!("  {name} {kind}")).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (\n{}\n);\n\
         CREATE INDEX IF NOT EXISTS {table}_pending ON {table} (seq) WHERE status = 'pending';\n\
         CREATE INDEX IF NOT EXISTS {table}_held ON {table} (key, seq) WHERE lease_until IS NOT NULL;\n\
         CREATE INDEX IF NOT EXISTS {table}_unleased ON {table} (seq) WHERE status = 'claimed' AND lease_until IS NULL;\n\
         CREATE INDEX IF NOT EXISTS {table}_parked ON {table} (seq) WHERE status = 'error';\n\
         CREATE INDEX IF NOT EXISTS {table}_ts ON {table} (ts);\n",
        columns.join(",\n")
    )
}
