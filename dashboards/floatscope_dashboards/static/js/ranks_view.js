// Ranks over time: one scalar of every rank, the worst value in each cell, with marks where a GPU was slowed down.
import { $, element, numberText, setAddress, stepText, theme } from './core.js';
import { rankmap } from './api.js';
import { chartTools } from './chart_tools.js';
import { draw, fail, renewed } from './plot.js';
import { plural, say } from './say.js';
import { sentences } from './sentences.js';

const MAX_COLUMNS = 180;
const MARGIN = { l: 76, r: 12, t: 8, b: 44 };
const NARROW_LEFT_PX = 52;
const MAX_TICKS = 16;
const ROW_PX = 26;
const [LEAST_PX, MOST_PX] = [110, 320];
const FULL = { gpu_util_pct: [0, 100] };

/** @param {() => object} current the page's data @param {() => [number, number]|null} steps the reader's zoom */
export function ranksView(current, steps) {
  const place = $('#rank-map');
  const choice = $('#rank-name');
  if (!place || !choice) return { load: () => undefined, redraw: () => undefined };
  const first = choice.value;
  readAddress();
  let map = null;
  let ticket = 0;

  function readAddress() {
    const asked = new URLSearchParams(location.search).get('rank_stat');
    if (choice.options) choice.value = [...choice.options].some((option) => option.value === asked) ? asked : first;
  }

  const selected = () => choice.selectedOptions?.[0] ?? choice;
  const label = () => selected().dataset.label ?? selected().textContent;
  const unit = () => selected().dataset.unit;
  const tools = chartTools({
    host: $('#ranks-tools'),
    chart: place,
    after: $('#ranks-note'),
    title: () => say('Ranks over time: {name}', { name: label() }),
    run: () => current().run,
    range: () => (map?.from.length ? say('Steps {from} to {to}', { from: stepText(map.from[0]), to: stepText(map.to.at(-1)) }) : ''),
    table,
  });

  async function load() {
    const mine = (ticket += 1);
    try {
      const found = await rankmap(current().run, choice.value, { columns: MAX_COLUMNS, steps: steps() });
      if (mine !== ticket) return;
      map = found;
      await redraw();
      renewed(place);
    } catch (error) {
      if (mine === ticket) fail(place, say('The ranks could not be loaded: {why}.', { why: error.message }), load);
    }
  }

  async function redraw() {
    if (!map) return;
    const rows = map.ranks.length;
    place.style.height = `${Math.min(MOST_PX, Math.max(LEAST_PX, rows * ROW_PX + MARGIN.t + MARGIN.b))}px`;
    const [low, high] = range();
    const ramp = map.worst === 'low' ? 'low' : 'high';
    const x = [...map.from, (map.to.at(-1) ?? 0) + 1];
    const marks = map.values.map((row) => row.map(() => null));
    for (const [row, column] of map.inf) marks[row][column] = 2;
    for (const [row, column] of map.nan) marks[row][column] = 1;
    const base = { type: 'heatmap', x, showscale: false, hoverongaps: false, ygap: rows <= 32 ? 3 : 0 };
    const slowed = new Map(map.throttled.map(([row, column, bits]) => [`${row} ${column}`, bits]));
    const text = map.values.map((row, r) => row.map((value, c) => cellText(r, c, value, slowed.get(`${r} ${c}`))));
    const every = Math.ceil(rows / MAX_TICKS);
    const picked = map.ranks.map((_, at) => at).filter((at) => at % every === 0);
    const throttled = {
      type: 'scatter',
      mode: 'markers',
      x: map.throttled.map(([, column]) => (map.from[column] + map.to[column] + 1) / 2),
      y: map.throttled.map(([row]) => row),
      marker: { symbol: 'triangle-down', size: 8, color: '@crit', line: { width: 1, color: '@surface' } },
      hoverinfo: 'skip',
    };
    const figure = {
      data: [
        { ...base, z: map.values, zmin: low, zmax: high, colorscale: `@ramp-${ramp}`, text, hovertemplate: '%{text}<extra></extra>' },
        { ...base, z: marks, zmin: 1, zmax: 2, colorscale: '@ramp-marks', text, hovertemplate: '%{text}<extra></extra>' },
        throttled,
      ],
      layout: {
        ...current().frames.heat.layout,
        margin: { ...MARGIN, l: place.clientWidth < 560 ? NARROW_LEFT_PX : MARGIN.l },
        shapes: current().frames.heat.layout.shapes,
        annotations: [],
        xaxis: { ...current().frames.heat.layout.xaxis, range: [x[0], x.at(-1)], title: { text: say('Step'), standoff: 4, font: { size: 12 } } },
        yaxis: {
          ...current().frames.heat.layout.yaxis,
          range: [rows - 0.5, -0.5],
          tickvals: picked,
          ticktext: picked.map((at) => rowText(map.ranks[at])),
        },
      },
    };
    await draw(place, figure, current());
    legend(low, high, ramp);
    note();
    tools.refresh();
  }

  /** The ends of the colours: those of the scalar, else of what there is; a low worst value is at the dark end. */
  function range() {
    if (FULL[map.name]) return FULL[map.name];
    const all = map.values.flat().filter((value) => value != null);
    const [low, high] = [Math.min(...all, Infinity), Math.max(...all, -Infinity)];
    if (!all.length) return [0, 1];
    return low < high ? [low, high] : [low, low + Math.max(1e-9, Math.abs(low) * 0.01)];
  }

  const rowText = (ranks) => (ranks.length === 1 ? say('rank {n}', { n: ranks[0] }) : say('{first}\u2013{last}', { first: ranks[0], last: ranks.at(-1) }));

  function cellText(row, column, value, slowed) {
    const steps0 = map.from[column] === map.to[column] ? say('step {step}', { step: stepText(map.from[column]) }) : say('steps {from} to {to}', { from: stepText(map.from[column]), to: stepText(map.to[column]) });
    const parts = [rowText(map.ranks[row]), steps0, value == null ? say('no finite value') : `${numberText(value)}\u202f${unit()}`];
    if (slowed != null) parts.push(say('the GPU was slowed down: {why}', { why: reasons(slowed) }));
    return parts.join('<br>');
  }

  function legend(low, high, ramp) {
    const stops = current().tokens[theme()][`ramp-${ramp}`];
    const bar = element('i', { className: 'ramp' });
    bar.style.background = `linear-gradient(90deg,${stops.map(([at, colour]) => `${colour} ${at * 100}%`).join()})`;
    const scale = element('span', {}, say('{name}, {unit}:', { name: label(), unit: unit() }), ' ', element('span', { className: 'num', text: numberText(low) }), bar, element('span', { className: 'num', text: numberText(high) }));
    const worst = map.worst === 'low' ? say('Lowest value in each cell') : say('Highest value in each cell');
    const parts = [scale, element('span', { className: 'faint', text: worst })];
    if (map.throttled.length) parts.push(element('span', { className: 'throttle', text: say('\u25bc GPU slowed down') }));
    $('#ranks-legend').replaceChildren(...parts);
  }

  function note() {
    const place0 = $('#ranks-note');
    const parts = [];
    const shared = map.ranks.find((ranks) => ranks.length > 1);
    if (shared) parts.push(plural('{n} rank in each row.', '{n} ranks in each row.', shared.length));
    if (map.ranks_left_out) parts.push(plural('{n} rank was not looked at.', '{n} ranks were not looked at.', map.ranks_left_out));
    place0.textContent = sentences(parts);
    place0.hidden = !parts.length;
  }

  function table() {
    const kind = new Map();
    for (const [row, column] of map?.inf ?? []) kind.set(`${row} ${column}`, Infinity);
    for (const [row, column] of map?.nan ?? []) kind.set(`${row} ${column}`, NaN);
    const slowed = new Map((map?.throttled ?? []).map(([row, column, bits]) => [`${row} ${column}`, reasons(bits)]));
    const rows = (map?.values ?? []).flatMap((row, r) =>
      row.map((value, c) => [rowText(map.ranks[r]), map.from[c], map.to[c], kind.get(`${r} ${c}`) ?? value, slowed.get(`${r} ${c}`) ?? '']),
    );
    return { columns: [say('Rank'), say('From step'), say('To step'), `${label()} (${unit()})`, say('GPU slowed down')], rows };
  }

  choice.addEventListener('change', () => {
    setAddress({ rank_stat: choice.value }, { push: true });
    load();
  });
  addEventListener('popstate', () => {
    const before = choice.value;
    readAddress();
    if (choice.value !== before) load();
  });
  addEventListener('resize', () => redraw());
  return { load, redraw };
}

// Bits of nvmlClocksEventReasons (NVML API reference, "NvmlClocksEventReasons").
const REASONS = [
  [0x2, () => say('application clocks')],
  [0x4, () => say('power cap')],
  [0x8, () => say('hardware slowdown')],
  [0x10, () => say('sync boost')],
  [0x20, () => say('heat, by software')],
  [0x40, () => say('heat, by hardware')],
  [0x80, () => say('power brake')],
  [0x100, () => say('display clocks')],
];

function reasons(bits) {
  const found = REASONS.filter(([bit]) => bits & bit).map(([, text]) => text());
  return found.length ? found.join(', ') : say('reason {bits}', { bits });
}
