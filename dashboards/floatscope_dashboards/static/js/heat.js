// Fills the heat map frame of the page with data. The same as heat_figure.fill_heat; a browser test holds the two equal.
import { plotlyText } from './core.js';
import { isNumbered } from './grid.js';

const LEFT_SHARE = 0.2;
const BESIDE_PX = -30;
const TICKS_PER_BLOCK = 5;
const MAX_TICK_TEXT = 20;

/**
 * @param {object} frame the page's frame, with "@token" colours
 * @param {object} grid from readGrid
 * @param {{stat: object, onset: number|null, origin: string|null}} options
 */
export function fillHeat(frame, grid, { stat, onset, origin = null }) {
  const figure = structuredClone(frame);
  const [values, marks] = figure.data;
  const [zmin, zmax] = colorRange(stat, grid);
  Object.assign(values, { z: grid.value, zmin, zmax, colorscale: `@ramp-${stat.ramp}`, x: grid.edges });
  Object.assign(marks, { z: grid.mark, x: grid.edges });
  const { layout } = figure;
  const { rows, edges } = grid;
  layout.xaxis.range = edges.length ? [edges[0], edges.at(-1)] : [0, 1];
  layout.yaxis.range = rows.length ? [rows.length - 0.5, -0.5] : [1, 0];
  const shown = ticks(rows);
  layout.yaxis.tickvals = shown.map(([at]) => at);
  layout.yaxis.ticktext = shown.map(([, text]) => text);
  layout.annotations = blockTitles(rows);
  layout.shapes = [...layout.shapes, ...gaps(rows)];
  const index = origin == null ? -1 : grid.tensors.indexOf(origin);
  const at = index < 0 ? -1 : rows.findIndex((row) => row?.tensors.includes(index));
  if (at >= 0 && onset != null && edges.length && edges[0] <= onset && onset <= edges.at(-1)) {
    layout.annotations.push(originLabel(onset, at, onset > edges[0] + LEFT_SHARE * (edges.at(-1) - edges[0])));
  }
  return figure;
}

/** The values at the ends of the colours: the statistic's own, else those that there are. */
export function colorRange(stat, { lo, hi }) {
  if (stat.low < stat.high) return [stat.low, stat.high];
  return lo < hi ? [lo, hi] : [lo, lo + 1];
}

function ticks(rows) {
  const named = rows.map((row, at) => [at, row]).filter(([, row]) => row);
  if (!isNumbered(rows)) return named.map(([at, row]) => [at, plotlyText(shorten(row.label))]);
  const kept = [];
  for (const block of new Set(named.map(([, row]) => row.block))) {
    const begun = [];
    for (const [at, row] of named) {
      if (row.block === block && row.number && begun.at(-1)?.[1] !== row.number) begun.push([at, row.number]);
    }
    const last = begun.length - 1;
    const parts = TICKS_PER_BLOCK - 1;
    const picks = new Set(Array.from({ length: TICKS_PER_BLOCK }, (_, n) => Math.floor((2 * last * n + parts) / (2 * parts))));
    if (begun.length) kept.push(...[...picks].map((pick) => begun[pick]));
  }
  return kept;
}

const shorten = (text) =>
  text.length <= MAX_TICK_TEXT ? text : `${text.slice(0, MAX_TICK_TEXT - 9)}...${text.slice(-6)}`;

function blockTitles(rows) {
  const places = new Map();
  rows.forEach((row, at) => row && places.set(row.block, [...(places.get(row.block) ?? []), at]));
  const shared = { xref: 'paper', x: 0, yref: 'y', showarrow: false };
  const font = { size: 11.5, color: '@text-2' };
  const beside = { xanchor: 'right', xshift: BESIDE_PX, yanchor: 'middle', align: 'right' };
  const above = { xanchor: 'left', yanchor: 'bottom' };
  return [...places].map(([block, at]) => ({
    text: `<b>${block}</b>`,
    ...shared,
    ...(isNumbered(rows) ? { ...beside, y: (at[0] + at.at(-1)) / 2 } : { ...above, y: at[0] - 0.5 }),
    font,
    name: block,
  }));
}

/** The space between blocks, in the colour of the page: it is no missing data. */
function gaps(rows) {
  const starts = rows.map((row, at) => at).filter((at) => !rows[at] && rows[at - 1]);
  const ends = rows.map((row, at) => at).filter((at) => !rows[at] && rows[at + 1]);
  const shared = { type: 'rect', xref: 'paper', x0: 0, x1: 1, yref: 'y' };
  const look = { fillcolor: '@surface', line: { width: 0 }, layer: 'above', name: 'gap' };
  return starts.map((start, index) => ({ ...shared, y0: start - 0.5, y1: ends[index] + 0.5, ...look }));
}

function originLabel(onset, at, right) {
  return {
    text: '<b>began here</b>',
    x: onset,
    xref: 'x',
    y: at,
    yref: 'y',
    ax: right ? -34 : 34,
    ay: 0,
    xanchor: right ? 'right' : 'left',
    showarrow: true,
    arrowhead: 2,
    arrowwidth: 1.5,
    arrowcolor: '@crit',
    bgcolor: '@surface',
    borderpad: 2,
    font: { size: 11, color: '@crit' },
    name: 'origin',
  };
}
