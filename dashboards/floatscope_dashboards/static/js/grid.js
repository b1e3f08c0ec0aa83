// The heat map's cells from the REST payload. The same as heat_grid.py; a browser test holds the two equal.

export const NONFINITE_CODE = 255;
export const LEVELS = 253;
const MISSING_CODE = 254;
const MAX_ROWS = 240;
const SPACER_SHARE = 0.05;
const GAP_FACTOR = 4;
const NAN_MARK = 1;
const INF_MARK = 2;
export const BLOCKS = [
  ['Activations', ['input', 'output']],
  ['Weights', ['weight']],
  ['Gradients', ['grad_output', 'grad_input', 'grad_weight']],
];
const OTHER_BLOCK = 'Other';
const ROLES = BLOCKS.flatMap(([, roles]) => roles);
const NO_ORDER = 2 ** 40;

/** A tensor's name as layer and role: the last slash splits; a name without one is all layer. */
export function splitTensor(name) {
  const at = name.lastIndexOf('/');
  return at < 0 ? { layer: name, role: '' } : { layer: name.slice(0, at), role: name.slice(at + 1) };
}

const blockOf = (role) => BLOCKS.find(([, roles]) => roles.includes(role))?.[0] ?? OTHER_BLOCK;

function decode(text, rows, columns) {
  const raw = atob(text ?? '');
  if (raw.length !== rows * columns) throw new Error(`data: expected ${rows} x ${columns} bytes, got ${raw.length}`);
  return Uint8Array.from(raw, (letter) => letter.charCodeAt(0));
}

/** Edges between columns and the payload column of each; null is a hole. `used`: the columns that have any data. */
function columnsOf(starts, ends, used) {
  if (!used.length) return { edges: [], columns: [] };
  const distances = used.slice(1).map((at, index) => starts[at] - starts[used[index]]).sort((a, b) => a - b);
  const usual = distances.length ? distances[Math.floor(distances.length / 2)] : ends[used[0]] - starts[used[0]] + 1;
  const edges = [starts[used[0]]];
  const columns = [used[0]];
  used.slice(1).forEach((at, index) => {
    const before = starts[used[index]];
    if (starts[at] - before > GAP_FACTOR * usual) {
      edges.push(before + usual);
      columns.push(null);
    }
    edges.push(starts[at]);
    columns.push(at);
  });
  edges.push(Math.max(starts[used.at(-1)] + usual, ends[used.at(-1)] + 1));
  return { edges, columns };
}

const compareText = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

/** Names with numbers by value: layer 2 before layer 10. */
export function compareNatural(a, b) {
  const left = a.split(/([0-9]+)/);
  const right = b.split(/([0-9]+)/);
  for (let index = 0; index < Math.min(left.length, right.length); index += 1) {
    const order = index % 2 ? Number(left[index]) - Number(right[index]) : compareText(left[index], right[index]);
    if (order) return order;
  }
  return left.length - right.length;
}

/** The layer from its number on: model.layers.23.mlp.fc2 reads 23.mlp.fc2. */
export const shortLayer = (layer) => layer.replace(/^.*?(?=\b[0-9]+\.)/, '') || layer;

function rowsOf(tensors, order) {
  const split = tensors.map(splitTensor);
  const blocks = new Map();
  split.forEach(({ role }, index) => {
    const block = blockOf(role);
    if (!blocks.has(block)) blocks.set(block, []);
    blocks.get(block).push(index);
  });
  const perRow = Math.max(1, Math.ceil(tensors.length / MAX_ROWS));
  const spacer = Math.max(1, Math.floor(Math.ceil(tensors.length / perRow) / Math.floor(1 / SPACER_SHARE)));
  const roleOrder = (role) => (ROLES.includes(role) ? ROLES.indexOf(role) : ROLES.length);
  const rows = [];
  for (const block of [...BLOCKS.map(([name]) => name), OTHER_BLOCK].filter((name) => blocks.has(name))) {
    const indices = blocks.get(block).sort((a, b) => {
      const [one, two] = [split[a], split[b]];
      return (
        (order[one.layer] ?? NO_ORDER) - (order[two.layer] ?? NO_ORDER) ||
        compareNatural(one.layer, two.layer) ||
        roleOrder(one.role) - roleOrder(two.role)
      );
    });
    const severalRoles = new Set(indices.map((at) => split[at].role)).size > 1;
    if (rows.length) rows.push(...Array(spacer).fill(null));
    for (let start = 0; start < indices.length; start += perRow) {
      const group = indices.slice(start, start + perRow);
      const { layer, role } = split[group[0]];
      rows.push({ block, label: shortLayer(layer) + (severalRoles && role ? ` ${role}` : ''), tensors: group });
    }
  }
  return rows;
}

/**
 * @param {object} payload of the REST interface
 * @param {{worst: string, order?: object}} options worst direction of the statistic, call order of the layers
 */
export function readGrid(payload, { worst, order = {} }) {
  const tensors = payload.tensors ?? [];
  const starts = payload.from ?? [];
  const ends = payload.to ?? [];
  const width = starts.length;
  const codes = decode(payload.data, tensors.length, width);
  const used = starts.map((_, at) => at).filter((at) => tensors.some((_, row) => codes[row * width + at] !== MISSING_CODE));
  const { edges, columns } = columnsOf(starts, ends, used);
  const marks = new Map();
  for (const [name, mark] of [['inf', INF_MARK], ['nan', NAN_MARK]]) {
    for (const [row, column, count] of payload[name] ?? []) if (count) marks.set(row * width + column, mark);
  }
  const rows = rowsOf(tensors, order);
  const low = payload.lo ?? 0;
  const step = ((payload.hi ?? 0) - low) / LEVELS;
  const worstCode = (group, at) => {
    const found = group.map((tensor) => codes[tensor * width + at]);
    if (found.includes(NONFINITE_CODE)) return NONFINITE_CODE;
    const usable = found.filter((code) => code <= LEVELS);
    if (!usable.length) return MISSING_CODE;
    return worst === 'low' ? Math.min(...usable) : Math.max(...usable);
  };
  const cell = (group, at) => (at == null ? MISSING_CODE : worstCode(group, at));
  const valueOf = (code) => (code > LEVELS ? null : low + code * step);
  const markOf = (group, at) => {
    const found = new Set(group.map((tensor) => marks.get(tensor * width + at)).filter(Boolean));
    return found.size === 1 && found.has(INF_MARK) ? INF_MARK : NAN_MARK;
  };
  const value = [];
  const mark = [];
  for (const row of rows) {
    const found = row ? columns.map((at) => cell(row.tensors, at)) : columns.map(() => MISSING_CODE);
    value.push(found.map(valueOf));
    mark.push(found.map((code, index) => (code === NONFINITE_CODE ? markOf(row.tensors, columns[index]) : null)));
  }
  return { tensors, rows, edges, columns, value, mark, codes, width, valueOf, markOf, starts, ends };
}
