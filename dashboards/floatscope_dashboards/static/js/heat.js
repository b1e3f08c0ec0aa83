// Fills the heat map frame of the page with data. The same as heat_figure.fill_heat; a browser test holds the two equal.
import { plotlyText } from './core.js';

const MAX_TICKS = 40;
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
  Object.assign(values, { z: grid.value, zmin: stat.low, zmax: stat.high, colorscale: `@ramp-${stat.ramp}`, x: grid.edges });
  Object.assign(marks, { z: grid.mark, x: grid.edges });
  const { layout } = figure;
  const { rows, edges } = grid;
  layout.xaxis.range = edges.length ? [edges[0], edges.at(-1)] : [0, 1];
  layout.yaxis.range = rows.length ? [rows.length - 0.5, -0.5] : [1, 0];
  const shown = ticks(rows);
  layout.yaxis.tickvals = shown.map(([at]) => at);
  layout.yaxis.ticktext = shown.map(([, text]) => text);
  layout.annotations = blockTitles(rows);
  const index = origin == null ? -1 : grid.tensors.indexOf(origin);
  const at = index < 0 ? -1 : rows.findIndex((row) => row?.tensors.includes(index));
  if (at >= 0 && onset != null && edges.length && edges[0] <= onset && onset <= edges.at(-1)) {
    layout.annotations.push(originLabel(onset, at, onset > (edges[0] + edges.at(-1)) / 2));
  }
  return figure;
}

function ticks(rows) {
  let named = rows.map((row, at) => [at, row]).filter(([, row]) => row);
  if (named.length > MAX_TICKS) {
    const kept = [];
    for (const block of new Set(named.map(([, row]) => row.block))) {
      const inside = named.filter(([, row]) => row.block === block);
      const last = inside.length - 1;
      const parts = TICKS_PER_BLOCK - 1;
      const picks = new Set(Array.from({ length: TICKS_PER_BLOCK }, (_, n) => Math.floor((2 * last * n + parts) / (2 * parts))));
      kept.push(...[...picks].map((pick) => inside[pick]));
    }
    named = kept;
  }
  return named.map(([at, row]) => [at, plotlyText(shorten(row.label))]);
}

const shorten = (text) =>
  text.length <= MAX_TICK_TEXT ? text : `${text.slice(0, MAX_TICK_TEXT - 9)}...${text.slice(-6)}`;

function blockTitles(rows) {
  const seen = new Set();
  const titles = [];
  rows.forEach((row, at) => {
    if (!row || seen.has(row.block)) return;
    seen.add(row.block);
    titles.push({
      text: `<b>${row.block}</b>`,
      xref: 'paper',
      x: 0,
      xanchor: 'left',
      yref: 'y',
      y: at - 0.5,
      yanchor: 'bottom',
      showarrow: false,
      font: { size: 11.5, color: '@text-2' },
    });
  });
  return titles;
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
