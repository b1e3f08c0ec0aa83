// The cells of a heat map payload, with the non-finite ones of other statistics laid over them. The same as
// heat_cells.py; a browser test holds the two equal.

export const NONFINITE_CODE = 255;
export const MISSING_CODE = 254;
export const LEVELS = 253;
const NAN_MARK = 1;
const INF_MARK = 2;
const COUNTS = { nan_count: NAN_MARK, inf_count: INF_MARK };

function decode(payload, rows, columns) {
  const raw = atob(payload.data ?? '');
  if (raw.length !== rows * columns) throw new Error(`data: expected ${rows} x ${columns} bytes, got ${raw.length}`);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at); // a callback each would take ten times as long
  return Array.from({ length: rows }, (_, row) => bytes.slice(row * columns, (row + 1) * columns));
}

function sparse(payload) {
  const found = [];
  for (const [name, kind] of [['inf', INF_MARK], ['nan', NAN_MARK]]) {
    for (const [row, column, count] of payload[name] ?? []) if (count) found.push([row, column, kind]);
  }
  return found;
}

const valueIn = (payload, code) => (payload.lo ?? 0) + (code * ((payload.hi ?? 0) - (payload.lo ?? 0))) / LEVELS;

/** [tensor, column, kind] of the cells that a statistic's payload says are not finite. */
function nonfinite(extra, columns) {
  const names = extra.tensors ?? [];
  const found = sparse(extra).map(([row, column, kind]) => [names[row], column, kind]);
  const kind = COUNTS[extra.stat];
  if (kind) {
    decode(extra, names.length, columns).forEach((codes, row) => {
      codes.forEach((code, column) => {
        if (code <= LEVELS && valueIn(extra, code) > 0) found.push([names[row], column, kind]);
      });
    });
  }
  return found;
}

/** Codes per tensor and column, and what kind of non-finite a cell is. @param {object} payload @param {object[]} marks */
export function readCells(payload, marks = []) {
  const tensors = [...(payload.tensors ?? [])];
  const starts = payload.from ?? [];
  const ends = payload.to ?? [];
  const codes = decode(payload, tensors.length, starts.length);
  const kinds = new Map();
  const key = (row, column) => row * starts.length + column;
  for (const [row, column, kind] of sparse(payload)) kinds.set(key(row, column), kind);
  const rowOf = new Map(tensors.map((name, row) => [name, row]));
  for (const extra of marks) {
    if (String(extra.from) !== String(starts)) continue;
    for (const [name, column, kind] of nonfinite(extra, starts.length)) {
      if (!rowOf.has(name)) {
        rowOf.set(name, tensors.length);
        tensors.push(name);
        codes.push(new Uint8Array(starts.length).fill(MISSING_CODE));
      }
      const row = rowOf.get(name);
      codes[row][column] = NONFINITE_CODE;
      kinds.set(key(row, column), Math.min(kind, kinds.get(key(row, column)) ?? kind));
    }
  }
  return {
    tensors,
    starts,
    ends,
    codes,
    valueOf: (code) => (code > LEVELS ? null : valueIn(payload, code)),
    /** NaN wins over Inf; a cell with neither count is NaN too. */
    kind(rows, column) {
      const found = new Set(rows.map((row) => kinds.get(key(row, column))).filter(Boolean));
      return found.size === 1 && found.has(INF_MARK) ? INF_MARK : NAN_MARK;
    },
  };
}
