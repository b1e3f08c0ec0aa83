// The page of one tensor: two charts over one axis of steps, which zoom together, and the numbers of one step.
import { $, $$, announce, copyText, setAddress, stepText } from './core.js';
import { quietWord, startLive } from './live.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';
import { startShell } from './shell.js';
import { paced, readAgain, swapParts } from './swap.js';
import { zoomable } from './zoom.js';

const CHARTS_EVERY_MS = 2500;
const PAGE_EVERY_MS = 4000;
const NUMBERS_SETTLE_MS = 200;
const AROUND_SHARE = 0.08;
const AROUND_MIN_STEPS = 24;
const FAST = 10;

let data = JSON.parse($('#page-data').textContent);
const current = () => data;
let panels = null;
let values = null;
let ticks = null;

/** A whole number of the address; null for anything else. */
const whole = (text) => (/^\d{1,16}$/.test(text ?? '') ? Number(text) : null);

const view = {
  range: null,
  after: true,
  x: 'step',
  at: null,
  extent: () => panels?.extent() ?? null,
  shown: () => view.range ?? panels?.shown() ?? null,
  words: () => {
    const shown = view.range ?? view.extent();
    return shown ? say('Steps {from} to {to}', { from: stepText(Math.max(0, shown[0])), to: stepText(shown[1]) }) : '';
  },
  async ticks(layout, width) {
    if (view.x !== 'time') return '';
    ticks ??= import('./time_ticks.js').then(({ timeTicks }) => timeTicks(current));
    return (await ticks)(layout, view.x, width);
  },
  zoomable(place) {
    zoomable(place, zoom);
    place.on('plotly_click', (event) => {
      const step = event.points?.[0]?.x;
      if (Number.isFinite(step)) lookAt(Math.round(step));
    });
  },
  setAfter(after) {
    view.after = after;
    setAddress({ values: after ? null : 'before' });
    pressed();
  },
  placed: () => {
    for (const place of $$('.tgrid .plot')) cursor(place);
  },
};

/** Whether values after scaling can be told from those before. */
const scaled = () => Object.keys(data.limits).length > 0;

function fromAddress() {
  const query = new URLSearchParams(location.search);
  const [from, to] = [whole(query.get('from')), whole(query.get('to'))];
  view.range = from != null && to != null && from < to ? [from, to] : null;
  view.after = query.get('values') !== 'before' && scaled();
  view.x = query.get('x') === 'time' ? 'time' : 'step';
  view.at = whole(query.get('at'));
}
fromAddress();

const charts = $('#panels') != null;
async function both() {
  const before = String(view.extent());
  await Promise.all([panels?.load(), values?.load()]);
  if (view.range == null && String(view.extent()) !== before) await values?.redraw(); // both over the same steps
}

const redraw = () => Promise.all([panels?.redraw(), values?.redraw()]);

function pressed() {
  for (const button of $$('[data-values]')) button.setAttribute('aria-pressed', String((button.dataset.values === 'after') === view.after));
  for (const button of $$('[data-x]')) button.setAttribute('aria-pressed', String(button.dataset.x === view.x));
  if (!charts) return;
  for (const group of $$('.seg:has([data-values])')) group.hidden = !scaled();
  $('#whole').hidden = view.range == null;
}

/** Shows these steps in both charts; null is the whole run. A committed zoom is a step of the history. */
function zoom(range) {
  if (String(range) === String(view.range)) return null;
  view.range = range && [Math.max(0, range[0]), range[1]];
  const query = new URLSearchParams(location.search);
  for (const [key, value] of [['from', view.range?.[0]], ['to', view.range?.[1]]]) {
    if (value == null) query.delete(key);
    else query.set(key, String(Math.round(value)));
  }
  const text = query.toString();
  history.pushState(null, '', location.pathname + (text ? `?${text}` : ''));
  pressed();
  return both();
}

function around() {
  if (data.onset == null) return;
  const last = data.last ?? data.onset;
  const half = Math.max(AROUND_MIN_STEPS, Math.round((last - (data.first ?? 0)) * AROUND_SHARE));
  announce(say('Showing the steps around the onset.'));
  zoom([Math.max(0, data.onset - half), data.onset + half]);
}

/** The charts are read beside plotly.js, which takes longer: the keys and the numbers need not wait for them. */
async function start() {
  if (!charts) return;
  const [{ panelsView }, { histogramView }] = await Promise.all([import('./tensor_panels.js'), import('./histogram_view.js')]);
  panels = panelsView(current, view);
  values = histogramView(current, view);
  await both();
}

// ---- the step whose numbers are shown
let settleNumbers = 0;

function lookAt(step) {
  view.at = step;
  setAddress({ at: step });
  view.placed();
  announce(say('Step {step}', { step: stepText(step) }));
  clearTimeout(settleNumbers);
  settleNumbers = setTimeout(() => askNumbers({ soon: true }), NUMBERS_SETTLE_MS);
}

function move(by) {
  const steps = panels?.steps() ?? [];
  if (!steps.length) return;
  const now = view.at ?? data.last ?? steps.at(-1);
  let at = steps.findIndex((step) => step >= now);
  if (at < 0) at = steps.length - 1;
  lookAt(steps[Math.min(steps.length - 1, Math.max(0, at + by))]);
}

/** A line over the chart at the step whose numbers are shown: an element, since a Plotly shape redraws the map. */
function cursor(place) {
  let mark = $('.cursor', place.parentElement);
  const axis = place._fullLayout?.xaxis;
  if (view.at == null || !axis?.l2p) {
    mark?.remove();
    return;
  }
  if (!mark) {
    mark = document.createElement('span');
    mark.className = 'cursor';
    mark.setAttribute('aria-hidden', 'true');
    place.after(mark);
  }
  const inside = axis.l2p(view.at);
  const room = place._fullLayout._size;
  mark.hidden = inside < 0 || inside > axis._length;
  mark.style.setProperty('left', `${place.offsetLeft + axis._offset + inside}px`);
  mark.style.setProperty('top', `${place.offsetTop + room.t}px`);
  mark.style.setProperty('height', `${room.h}px`);
}

// ---- freshness
let reads = 0;

async function refresh() {
  const ticket = (reads += 1);
  const fresh = await readAgain();
  if (!fresh || ticket !== reads) return; // a newer answer is on its way
  const before = data;
  data = fresh.data;
  swapParts(fresh.page);
  if (JSON.stringify(data.panels) !== JSON.stringify(before.panels)) location.reload();
  else if (data.onset !== before.onset) redraw();
}

const askPage = paced(refresh, PAGE_EVERY_MS);
const askNumbers = paced(refresh, 0); // the reader waits for these
const askCharts = paced(both, CHARTS_EVERY_MS);

function onEvent(kind, event) {
  if (kind === 'tick' && Number.isInteger(event.step) && event.step > (data.last ?? -1)) {
    data.last = event.step;
    if (view.range == null) askCharts();
  }
  askPage();
}

document.addEventListener('change', (event) => {
  if (event.target.id !== 'rank') return;
  const query = new URLSearchParams(location.search);
  query.set('rank', event.target.value);
  location.search = query.toString();
});
for (const button of $$('[data-x]')) {
  button.addEventListener('click', () => {
    view.x = button.dataset.x;
    setAddress({ x: view.x === 'time' ? 'time' : null });
    pressed();
    redraw();
  });
}
document.addEventListener('click', (event) => {
  if (!event.target.closest?.('#copy-link')) return;
  copyText(location.href).then(() => notice(say('Link copied')), () => failure(say('The browser does not allow to copy here.')));
});
$('#whole')?.addEventListener('click', () => zoom(null));
$('#around')?.addEventListener('click', around);
addEventListener('popstate', () => {
  fromAddress();
  pressed();
  both();
});
addEventListener('resize', view.placed);
const follow = (id) => () => $(id)?.click();
const scrub = (by, text) => ({
  run: (event) => {
    event.preventDefault();
    move(by);
  },
  text,
});
startShell({
  redraw,
  keys: {
    n: { run: follow('#next'), text: say('Next tensor, worst first') },
    p: { run: follow('#previous'), text: say('Previous tensor') },
    o: { run: around, text: say('Steps around the onset') },
    '[': scrub(-1, say('Numbers of an earlier or a later step')),
    ']': scrub(1, say('Numbers of an earlier or a later step')),
    '{': scrub(-FAST, say('The same, ten times as far')),
    '}': scrub(FAST, say('The same, ten times as far')),
    Escape: { run: () => zoom(null), text: say('Show the whole run') },
  },
});
startLive({
  url: `/api/v1/events?run=${encodeURIComponent(data.run)}`,
  ageS: data.age_s,
  notLive: () => quietWord(data.status),
  onEvent,
  onResume: () => {
    askPage({ soon: true });
    askCharts({ soon: true });
  },
});
pressed();
start();
