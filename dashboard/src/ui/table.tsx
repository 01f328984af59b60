// A table that sorts by its heads and is walked with the arrow keys. Shows at most `most` rows and says so.
import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { count } from "../format";

export interface Col<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  /** What to sort by; a column without it does not sort. */
  by?: (row: T) => number | string;
  num?: boolean;
  wide?: boolean;
}

interface Props<T> {
  label: string;
  rows: T[];
  cols: Col<T>[];
  id: (row: T) => string;
  empty: ComponentChildren;
  /** Column and direction at first; none keeps the order of the rows. */
  sort?: [title: string, down?: boolean];
  selected?: string | undefined;
  most?: number;
}

/** Arrow up and down move between the first link or button of each row. */
function walk(event: JSX.TargetedKeyboardEvent<HTMLElement>): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const stops = [...event.currentTarget.querySelectorAll<HTMLElement>("tbody tr")].map((row) => row.querySelector<HTMLElement>("a, button"));
  const row = (event.target as HTMLElement).closest("tr");
  const at = stops.findIndex((stop) => stop && row?.contains(stop));
  const next = stops[at + step];
  if (at < 0 || !next) return;
  event.preventDefault();
  next.focus();
}

export function Table<T>({ label, rows, cols, id, empty, sort, selected, most = 500 }: Props<T>) {
  const [order, setOrder] = useState<[string, boolean] | undefined>(sort && [sort[0], !!sort[1]]);
  const by = cols.find((col) => col.title === order?.[0])?.by;
  const sorted = useMemo(() => {
    if (!by || !order) return rows;
    const sign = order[1] ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [x, y] = [by(a), by(b)];
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
  }, [rows, order?.[0], order?.[1]]);
  const shown = sorted.slice(0, most);
  if (!rows.length) return <div class="empty">{empty}</div>;
  return (
    <div class="scroll" tabIndex={-1}>
      <table aria-label={label} onKeyDown={walk}>
        <thead>
          <tr>
            {cols.map((col) => {
              const on = order?.[0] === col.title;
              const words = on ? (order![1] ? "descending" : "ascending") : undefined;
              return (
                <th key={col.title} scope="col" class={col.num ? "num" : undefined} aria-sort={words}>
                  {col.by ? <button type="button" class="sort" onClick={() => setOrder([col.title, on ? !order![1] : !!col.num])}>{col.title}<span aria-hidden="true">{on ? (order![1] ? " ↓" : " ↑") : ""}</span></button> : col.title}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr key={id(row)} aria-selected={selected === undefined ? undefined : selected === id(row)}>
              {cols.map((col) => <td key={col.title} class={col.num ? "num" : col.wide ? "wide" : undefined}>{col.cell(row)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > most && <p class="muted small pad">The first {count(most)} of {count(sorted.length)}. Filter to see others.</p>}
    </div>
  );
}
