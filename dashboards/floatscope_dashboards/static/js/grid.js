// The heat map's cells from the REST payload. The same as heat_grid.py; a browser test holds the two equal.

import { LEVELS, MISSING_CODE, NONFINITE_CODE, readCells } from './cells.js';

const MAX_ROWS = 240;
const SPACER_SHARE = 0.05;
const THIN_SHARE = 0.025;
const MAX_NAMED = 30;
const GAP_FACTOR = 4;
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

/** A name in parts, text and numbers in turn. */
const parts = (name) => name.split(/([0-9]+)/);

/** Names with numbers by value: layer 2 before layer 10. @param {string[]} left @param {string[]} right in parts */
function compareNatural(left, right) {
  for (let index = 0; index < Math.min(left.length, right.length); index += 1) {
    const order = index % 2 ? Number(left[index]) - Number(right[index]) : compareText(left[index], right[index]);
    if (order) return order;
  }
  return left.length - right.length;
}

/** The layer from its number on: model.layers.23.mlp.fc2 reads 23.mlp.fc2. */
export const shortLayer = (layer) => layer.replace(/^.*?(?=\b[0-9]+\.)/, '') || layer;

/** The first number that is a part of the name; '' without one. */
const layerNumber = (layer) => /(?:^|[._])([0-9]+)(?=[._]|$)/.exec(layer)?.[1] ?? '';

/** Whether rows are labelled by the number of their layer. */
export const isNumbered = (rows) => rows.filter(Boolean).length > MAX_NAMED;

function rowsOf(cells, order, only) {
  const split = cells.tensors.map(splitTensor);
  const inParts = split.map(({ layer }) => parts(layer));
  const wanted = (at) => (!only || blockOf(split[at].role) === only) && cells.codes[at].some((code) => code !== MISSING_CODE);
  const shown = split.map((_, at) => at).filter(wanted);
  const blocks = new Map();
  for (const at of shown) {
    const block = blockOf(split[at].role);
    if (!blocks.has(block)) blocks.set(block, []);
    blocks.get(block).push(at);
  }
  const perRow = Math.max(1, Math.ceil(shown.length / MAX_ROWS));
  const height = Math.ceil(shown.length / perRow);
  const spacer = Math.max(1, Math.floor(height / Math.floor(1 / (height <= MAX_NAMED ? SPACER_SHARE : THIN_SHARE))));
  const roleOrder = (role) => (ROLES.includes(role) ? ROLES.indexOf(role) : ROLES.length);
  const rows = [];
  for (const block of [...BLOCKS.map(([name]) => name), OTHER_BLOCK].filter((name) => blocks.has(name))) {
    const indices = blocks.get(block).sort((a, b) => {
      const [one, two] = [split[a], split[b]];
      return (
        (order[one.layer] ?? NO_ORDER) - (order[two.layer] ?? NO_ORDER) ||
        compareNatural(inParts[a], inParts[b]) ||
        roleOrder(one.role) - roleOrder(two.role)
      );
    });
    const severalRoles = new Set(indices.map((at) => split[at].role)).size > 1;
    if (rows.length) rows.push(...Array(spacer).fill(null));
    for (let start = 0; start < indices.length; start += perRow) {
      const group = indices.slice(start, start + perRow);
      const { layer, role } = split[group[0]];
      const label = shortLayer(layer) + (severalRoles && role ? ` ${role}` : '');
      rows.push({ block, label, number: layerNumber(layer), tensors: group });
    }
  }
  return rows;
}

/**
 * @param {object} payload of the REST interface
 * @param {{worst: string, order?: object, marks?: object[], block?: string|null}} options worst: which value of a pooled cell is shown;
 *   order: first forward call of the layers; marks: payloads that tell where values are not finite;
 *   block: the only block shown
 */
export function readGrid(payload, { worst, order = {}, marks = [], block = null }) {
  const cells = readCells(payload, marks);
  const { starts, ends, codes } = cells;
  const used = starts.map((_, at) => at).filter((at) => codes.some((row) => row[at] !== MISSING_CODE));
  const { edges, columns } = columnsOf(starts, ends, used);
  const rows = rowsOf(cells, order, block);
  const cell = (row, at) => {
    if (!row || at == null) return MISSING_CODE;
    const found = row.tensors.map((tensor) => codes[tensor][at]);
    if (found.includes(NONFINITE_CODE)) return NONFINITE_CODE;
    const usable = found.filter((code) => code <= LEVELS);
    if (!usable.length) return MISSING_CODE;
    return worst === 'low' ? Math.min(...usable) : Math.max(...usable);
  };
  const value = [];
  const mark = [];
  for (const row of rows) {
    const found = columns.map((at) => cell(row, at));
    value.push(found.map(cells.valueOf));
    mark.push(found.map((code, index) => (code === NONFINITE_CODE ? cells.kind(row.tensors, columns[index]) : null)));
  }
  return { ...cells, rows, edges, columns, value, mark, lo: payload.lo ?? 0, hi: payload.hi ?? 0 };
}
