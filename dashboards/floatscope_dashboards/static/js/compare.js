// The comparison of two runs: draws the difference, keeps chart and decision fresh while either run goes on.
import { $, $$, announce, copyText, setAddress, stepText } from './core.js';
import { get } from './api.js';
import { chartTools } from './chart_tools.js';
import { fillDifference } from './difference.js';
import { startLive } from './live.js';
import { failure, notice } from './notice.js';
import { draw, fail, renewed } from './plot.js';
import { say } from './say.js';
import { startShell } from './shell.js';
import { gone } from './strips.js';
import { paced, readPage, swapParts } from './swap.js';

const EVERY_MS = 4000;
const TENSORS_EVERY_MS = 60_000; // of large runs, whose tensors take seconds
const MIN_POINTS = 200;
const MAX_POINTS = 900;

let data = JSON.parse($('#page-data').textContent);
const place = $('#difference');
let range = zoomOf(new URLSearchParams(location.search).get('shown'));
let series = null;
let looked = !data.tensors_wait; // whether tensors are shown, maybe those of some steps ago
let asked = 0;
let wired = false;
let pointer = null;
let late = false; // something came while the pointer was down on the chart

function zoomOf(text) {
  const found = /^(\d{1,16})-(\d{1,16})$/.exec(text ?? '');
  return found && Number(found[1]) < Number(found[2]) ? [Number(found[1]), Number(found[2])] : null;
}

const question = () => ({
  run: data.run,
  baseline: data.baseline,
  from: data.from,
  to: data.to,
  ...data.limits,
  points: Math.min(MAX_POINTS, Math.max(MIN_POINTS, place.clientWidth)),
  shown_from: range && Math.max(0, Math.floor(range[0])),
  shown_to: range && Math.max(0, Math.ceil(range[1])),
});

async function load() {
  if (!data.comparable) return;
  const ticket = (asked += 1);
  try {
    const found = await get('/api/v1/compare', { ...question(), tensors: data.tensors_wait ? false : null });
    if (ticket !== asked) return; // a newer answer is on its way
    series = found.series;
    await redraw();
    renewed(place);
  } catch (error) {
    if (ticket === asked) fail(place, say('The difference could not be loaded: {why}.', { why: error.message }), load);
  }
}

async function redraw() {
  late = Boolean(pointer?.isHeld());
  if (!series || late) return;
  await draw(place, fillDifference(data.frame, series, { margin: data.margin, range }), data);
  if (!wired) wire();
  notes();
  tools.refresh();
}

function wire() {
  wired = true;
  import('./zoom.js').then(({ zoomable }) => { // which is of no use before there is a chart
    pointer = zoomable(place, zoom, () => late && redraw());
  });
}

function zoom(steps) {
  pointer?.drop();
  range = steps && [Math.max(0, Math.floor(steps[0])), Math.max(1, Math.ceil(steps[1]))];
  setAddress({ shown: range ? range.join('-') : null }, { push: true });
  return load();
}

function notes() {
  $('#whole').hidden = range == null;
  const { band, bin_steps: width } = series;
  const parts = [];
  if (band.step.length > 1) {
    parts.push(say('The line is the mean of {n} pairs around each step, with its band by block bootstrap.', { n: stepText(band.pairs) }));
  } else {
    parts.push(say('Too few pairs for a band.'));
  }
  parts.push(width > 1 ? say('Faint: single bins of {n} steps.', { n: stepText(width) }) : say('Faint: every single step.'));
  if (range) parts.push(say('Double click or Esc shows all steps.'));
  const text = parts.join(' ');
  if ($('#diff-note').textContent !== text) $('#diff-note').textContent = text;
}

const tools = $('#diff-tools')
  ? chartTools({
      host: $('#diff-tools'),
      chart: place,
      after: $('#diff-note'),
      title: () => say('Loss difference'),
      run: () => `${data.name} - ${data.baseline_name}`,
      range: () => (series ? say('Steps {from} to {to}', { from: stepText(range?.[0] ?? series.from), to: stepText(range?.[1] ?? series.to) }) : ''),
      table: async () => (await import('./difference_table.js')).differenceTable(series),
    })
  : { refresh: () => {} };

/** Reads the page again; the numbers in the limit's field stay as the reader typed them. */
async function refresh() {
  const page = await readPage().catch(() => null); // the chip says that the server does not answer
  const block = page && $('#page-data', page);
  if (page && !$('#decision-h', page)) gone(); // one of the runs: the address leads to choosing two now
  if (!block || !$('#decision-h', page)) return;
  const before = $('#decision-h').textContent;
  data = JSON.parse(block.textContent);
  swapParts(page, data.tensors_wait && looked ? ['parted'] : []); // what was found stays until it is looked for again
  if (data.tensors_wait) askTensors();
  else looked = true;
  if ($('#decision-h').textContent !== before) announce($('#decision-h').textContent);
}

/** Large runs: asks for the tensors once the page stands, then reads what the server says of them. */
async function lookAtTensors() {
  try {
    await get('/api/v1/compare', { ...question(), points: 1, shown_from: null, shown_to: null });
    await refresh();
  } catch (error) {
    if (!looked) $('#parted .note').textContent = say('The tensors could not be looked at: {why}.', { why: error.message });
  }
}

const askTensors = paced(lookAtTensors, TENSORS_EVERY_MS);
const askAll = paced(async () => {
  await Promise.all([refresh(), load()]);
}, EVERY_MS);

document.addEventListener('click', (event) => {
  if (event.target.closest?.('#set-baseline')) import('./compare_baseline.js').then(({ setBaseline }) => setBaseline(data, () => askAll({ soon: true })));
  if (!event.target.closest?.('#copy-link')) return;
  copyText(location.href).then(() => notice(say('Link copied')), () => failure(say('The browser does not allow to copy here.')));
});

const limitFields = () => $$('#limit-form [name]:not([type=hidden])');

/** The address asks for another limit or other steps: the page stands meanwhile, also where the server does not answer. */
async function again() {
  await refresh();
  await load();
}

$('#limit-form')?.addEventListener('submit', (event) => {
  event.preventDefault();
  setAddress(Object.fromEntries(limitFields().map((field) => [field.name, field.value.trim() || null])), { push: true });
  again();
});
addEventListener('popstate', () => {
  range = zoomOf(new URLSearchParams(location.search).get('shown'));
  again().then(() => {
    for (const field of limitFields()) field.value = data.limits[field.name] ?? '';
  });
});
$('#whole')?.addEventListener('click', () => zoom(null));

startShell({
  redraw,
  keys: { Escape: { run: () => range && zoom(null), text: say('Show all steps') } },
});

startLive({
  url: '/api/v1/events',
  ageS: null,
  notLive: () => (data.live.length ? '' : say('Ended')),
  onEvent: (_kind, event) => {
    if ([data.run, data.baseline].includes(event.run ?? event.run_id)) askAll();
  },
  onResume: () => askAll({ soon: true }),
});

load();
if (data.tensors_wait) askTensors({ soon: true });
