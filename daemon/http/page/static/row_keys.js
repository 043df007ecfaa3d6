// The keys of the table's rows: one row can be reached by Tab, the arrows go on from there, through
// rows that are not drawn yet as well.

const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity };

export function bindRowKeys(table) {
  const keys = new RowKeys(table);
  table.box.addEventListener("keydown", (event) => keys.press(event));
  table.body.addEventListener("focusin", (event) => keys.enter(event.target.closest("tr")));
  return keys;
}

class RowKeys {
  constructor(table) {
    this.table = table;
    this.key = null;
  }

  enter(row) {
    if (!row?.dataset.key) return;
    this.key = row.dataset.key;
    this.settle();
  }

  press(event) {
    if (event.target.closest("thead")) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.table.open(this.table.drawn.get(this.key));
      return;
    }
    const step = STEPS[event.key];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.move(step);
  }

  move(step) {
    const { entries, box } = this.table;
    const from = Math.max(0, entries.findIndex((entry) => entry.key === this.key));
    const to = Math.max(0, Math.min(from + step, entries.length - 1));
    if (!entries[to]) return;
    this.key = entries[to].key;
    if (!this.table.drawn.has(this.key)) {
      box.scrollTop = to * this.table.rowHeight - box.clientHeight / 2;
      this.table.draw();
    }
    const row = this.table.drawn.get(this.key);
    row?.focus();
    row?.scrollIntoView({ block: "nearest" });
  }

  /** Just one drawn row has its place in the order of Tab. */
  settle() {
    const { drawn } = this.table;
    const chosen = drawn.has(this.key) ? this.key : drawn.keys().next().value;
    for (const [key, row] of drawn) row.tabIndex = key === chosen ? 0 : -1;
  }
}
