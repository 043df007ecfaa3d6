// The rows of the Action Queues table: put together, filtered, sorted, grouped. Pure: no document.

export const COLUMNS = ["flow", "type", "action", "class", "warm", "cold", "total", "oldest"];
const NUMBERS = new Set(["warm", "cold", "total", "oldest"]);

/** Numbers begin with the largest, the oldest first; names with A. */
export const firstDirection = (column) => (NUMBERS.has(column) ? "descending" : "ascending");

/** What is searched: lower case, once, so that a key press costs one `includes` a row. */
export function prepare(row) {
  row.total = row.warm + row.cold;
  row.haystack = [row.flow, row.type, row.action, row.class, row.queue, row.plugin]
    .join(" ")
    .toLowerCase();
  row.names = { flow: row.flow.toLowerCase(), type: row.type.toLowerCase(),
    action: `${row.action || row.queue} ${row.queue}`.toLowerCase(), class: row.class.toLowerCase() };
  return row;
}

/** Every word must be somewhere in the row. */
export function filtered(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => words.every((word) => row.haystack.includes(word)));
}

export function sorted(rows, column, direction) {
  const value = NUMBERS.has(column) ? numberOf(column) : (row) => row.names[column];
  const sign = direction === "ascending" ? 1 : -1;
  return [...rows].sort((a, b) => sign * compare(value(a), value(b)) || compare(a.key, b.key));
}

/** Age, not time: the oldest is the largest, and what has none is younger than everything. */
function numberOf(column) {
  if (column !== "oldest") return (row) => row[column];
  return (row) => (row.oldest === null ? -Infinity : -row.oldest);
}

/** Code points suffice for names, and are five times faster than a collator. */
function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** A row for each class with the sums of its rows, and its rows under it where it is open. */
export function grouped(rows, column, direction, open) {
  const groups = new Map();
  for (const row of rows) {
    if (!groups.has(row.class)) groups.set(row.class, newGroup(row));
    const group = groups.get(row.class);
    group.members.push(row);
    group.warm += row.warm;
    group.cold += row.cold;
    group.total += row.total;
    if (row.oldest !== null) group.oldest = Math.min(group.oldest ?? Infinity, row.oldest);
  }
  // A class has one name: sorted by another name, the groups stand in the order of theirs.
  const by = NUMBERS.has(column) ? column : "class";
  return sorted([...groups.values()], by, direction).flatMap((group) =>
    open.has(group.class) ? [group, ...sorted(group.members, column, direction)] : [group]);
}

function newGroup(row) {
  return { key: `class ${row.class}`, isGroup: true, class: row.class, plugin: row.plugin,
    names: { class: row.names.class }, members: [], warm: 0, cold: 0, total: 0, oldest: null };
}

/**
 * `rows` in the order that `keys` has them; new ones at the end. For a table that somebody points
 * at: a row must not move away from under a pointer.
 */
export function inOrderOf(rows, keys) {
  const place = new Map(keys.map((key, index) => [key, index]));
  return [...rows].sort((a, b) => (place.get(a.key) ?? Infinity) - (place.get(b.key) ?? Infinity) || 0);
}
