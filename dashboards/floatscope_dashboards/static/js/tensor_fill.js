// Fills the panels of one tensor with data. Pure: takes the page's frame and the REST columns, gives a figure.
import { numberText, plotlyText, stepText } from './core.js';
import { band, isolated, line, missingStretches, nonfiniteStretches, readBins } from './bins.js';
import { valueAxis } from './log_axis.js';
import { say } from './say.js';

const TICKS_OF_WHOLE = 18; // labels that fit above each other over the whole height
const RIGHT_SPACE_SHARE = 0.02;
const TOLD_FROM_BINADES = 0.25;
export const SHADOW = 'shadow_scale';

/** Columns in the unit of the panel, with the number that the line shows as their mean. */
export function shownColumns(columns, { pick = 'last', factor = 1 } = {}) {
  if (!columns) return columns;
  const scaled = (name) => (columns[name] ?? []).map((value) => (value == null ? null : value * factor));
  const found = { ...columns };
  for (const name of ['min', 'max', 'mean', 'last']) found[name] = scaled(name);
  found.mean = found[pick];
  return found;
}

/** Bins of every series, by statistic. `sat` becomes the largest value after scaling. */
export function readPanels(panels, series, limits) {
  const found = {};
  for (const { stat, pick } of panels) {
    const factor = stat === 'sat' ? (limits.max ?? 1) : 1;
    found[stat] = readBins(shownColumns(series[stat], { pick, factor }));
  }
  found[SHADOW] = readBins(shownColumns(series[SHADOW]));
  return found;
}

/** Every step of the series, first and last. @returns {[number, number]|null} */
export function extentOf(read) {
  const ends = Object.values(read).filter((bins) => bins.rows.length);
  if (!ends.length) return null;
  const firsts = ends.map((bins) => bins.rows[0].step);
  const lasts = ends.map((bins) => bins.rows.at(-1).step);
  return [Math.min(...firsts), Math.max(...lasts)];
}

/** The steps that both charts show of the whole run: some room is left for the newest. */
export const withSpace = ([first, last]) => [first, last + Math.max((last - first) * RIGHT_SPACE_SHARE, 1)];

/**
 * @param {object} frame the page's frame, with "@token" colours
 * @param {object[]} panels what the page says of each panel
 * @param {Record<string, object>} read bins by statistic, from readPanels
 * @param {{limits: object, format: string, onset: number|null, range: [number, number]|null, odd: object[],
 *   whole: [number, number]|null}} options odd: bins of counts of values that are not finite
 */
export function fillPanels(frame, panels, read, { limits = {}, format = '', onset = null, range = null, odd = [], whole = null }) {
  const figure = structuredClone(frame);
  const { layout } = figure;
  const all = withSpace(whole ?? extentOf(read) ?? [0, 1]);
  const shown = range ?? all;
  layout.xaxis.range = [...shown];
  const places = {};
  panels.forEach(({ stat, scale }, index) => {
    const own = finite([read[stat], ...(stat === 'scale' ? [read[SHADOW]] : [])]);
    const top = stat === 'sat' && limits.max ? [limits.max] : [];
    const axis = layout[index ? `yaxis${index + 1}` : 'yaxis'];
    const room = Math.max(2, Math.round((axis.domain[1] - axis.domain[0]) * TICKS_OF_WHOLE));
    const made = valueAxis(scale, own, { always: own.length ? top : [], numbers: stat === 'sat' || stat === 'amax', most: Math.min(room, 6) });
    places[stat] = made.place;
    Object.assign(axis, own.length ? made.axis : { range: [0, 1], tickvals: [], tickmode: 'array' });
    const yref = index ? `y${index + 1}` : 'y';
    if (own.length && top.length) limitLine(layout, yref, made.place(limits.max), format);
    if (!own.length) layout.annotations.push(nothing(yref));
    if (made.below) layout.annotations.push(outside(yref, made.smallest));
    for (const [from, to] of nonfiniteStretches(read[stat])) layout.shapes.push(rect(from, to, `${yref} domain`, '@nan-band', 'nonfinite'));
  });
  places[SHADOW] = places.scale;
  for (const trace of figure.data) Object.assign(trace, filled(trace.meta, read, places));
  for (const bins of odd) {
    for (const [from, to] of nonfiniteStretches(counted(bins))) layout.shapes.push(rect(from, to, 'paper', '@nan-band', 'nonfinite'));
  }
  const at = panels.findIndex(({ stat }) => stat === 'scale');
  const apart = at < 0 ? null : distance(read, shown, at ? `y${at + 1}` : 'y', places.scale);
  if (apart) layout.annotations.push(apart);
  const first = panels.length ? read[panels[0].stat] : null;
  if (first) for (const [from, to] of missingStretches(first)) layout.shapes.push(rect(from, to, 'paper', '@gap-band', 'missing'));
  for (const shape of layout.shapes) if (shape.name === 'after-onset') shape.x1 = Math.max(all[1], shape.x0);
  if (onset != null && shown[0] <= onset && onset <= shown[1]) layout.annotations.push(onsetLabel(onset, shown));
  return figure;
}

function filled([stat, part], read, places) {
  const bins = read[stat];
  const place = places[stat];
  if (!bins || !place) return { x: [], y: [], customdata: [] };
  if (part === 'band') {
    const { x, y } = band(bins);
    return { x, y: y.map((value) => (value == null ? null : place(value))) };
  }
  const { x, y } = part === 'line' ? line(bins) : isolated(bins);
  return { x, y: y.map((value) => (value == null ? null : place(value))), customdata: y.map((value) => (value == null ? '' : numberText(value))) };
}

/** How far the scale in use is from the shadow scale, where both are known last. */
function distance(read, shown, yref, place) {
  const shadow = new Map(read[SHADOW].rows.map((row) => [row.step, row.mean]));
  const row = read.scale.rows.filter(({ step, mean }) => step <= shown[1] && mean > 0 && shadow.get(step) > 0).at(-1);
  if (!row) return null;
  const binades = Math.log2(row.mean / shadow.get(row.step));
  if (Math.abs(binades) < TOLD_FROM_BINADES) return null;
  const value = Math.abs(binades).toFixed(1);
  const text = binades > 0 ? say('{n} binades too high', { n: value }) : say('{n} binades lower than its own amax allows', { n: value });
  return {
    text: `<b>${text}</b>`, xref: 'paper', x: 0.985, xanchor: 'right', yref, y: (place(row.mean) + place(shadow.get(row.step))) / 2, yanchor: 'middle', showarrow: false,
    bgcolor: '@surface', opacity: 0.9, font: { size: 12, color: binades > 0 ? '@crit' : '@text-2' }, name: 'distance',
  };
}

const finite = (many) => many.filter(Boolean).flatMap((bins) => bins.rows.flatMap((row) => [row.low, row.high, row.mean])).filter((value) => value != null);

/** Bins that count values that are not finite, as bins that hold so many. */
const counted = ({ rows, distance }) => ({
  distance,
  rows: rows.map((row) => ({ ...row, nan: row.high > 0 || row.nan ? 1 : 0, inf: 0 })),
});

const rect = (x0, x1, yref, fillcolor, name) => ({
  type: 'rect', xref: 'x', yref, x0, x1, y0: 0, y1: 1, fillcolor, line: { width: 0 }, layer: 'below', name,
});

function limitLine(layout, yref, y, format) {
  layout.shapes.push({
    type: 'line', xref: 'paper', yref, x0: 0, x1: 1, y0: y, y1: y, line: { color: '@crit', width: 1.2, dash: '4px,3px' }, name: 'limit',
  });
  layout.annotations.push({
    text: say('{format} max', { format: plotlyText(format) }), xref: 'paper', x: 0.994, xanchor: 'right', yref, y, yanchor: 'bottom', showarrow: false,
    font: { size: 11, color: '@crit' }, name: 'limit',
  });
}

const outside = (yref, smallest) => ({
  text: say('lower values are out of view, lowest {value}', { value: numberText(smallest) }), xref: 'paper', x: 1, xanchor: 'right', yref: `${yref} domain`,
  y: 0, yanchor: 'bottom', showarrow: false, font: { size: 11, color: '@text-3' }, name: 'outside',
});

const nothing = (yref) => ({
  text: say('no values in these steps'), xref: 'paper', x: 0.5, xanchor: 'center', yref: `${yref} domain`, y: 0.5, yanchor: 'middle', showarrow: false,
  font: { size: 12, color: '@text-3' }, name: 'nothing',
});

function onsetLabel(onset, shown) {
  const right = onset > (shown[0] + shown[1]) / 2;
  return {
    text: `<b>${say('Onset {step}', { step: stepText(onset) })}</b>`, x: onset, xref: 'x', xanchor: right ? 'right' : 'left', xshift: right ? 4 : -4,
    y: 1, yref: 'paper', yanchor: 'bottom', yshift: 15, showarrow: false, font: { size: 12, color: '@crit' },
  };
}
