// The loss chart on the run page: reads what the screen can show, draws it, lets the reader zoom, and follows the run
// only while the newest step is in view. A tick never moves the reader's zoom. The whole view is in the address.
import { $, $$, announce, stepText } from './core.js';
import { get, scalars, series } from './api.js';
import { halfLifeSteps, readBins } from './bins.js';
import { chartTools } from './chart_tools.js';
import { fillLoss } from './loss.js';
import { lossWords, outsideText } from './loss_numbers.js';
import { draw, fail, renewed } from './plot.js';
import { language, plural, say } from './say.js';
import { addressOf, putView, readView } from './view_state.js';

const MIN_POINTS = 200;
const MAX_POINTS = 900;
const AROUND_SHARE = 0.08;
const AROUND_MIN_STEPS = 24;
const WARM_UP_HALVES = 4; // half-lives read before the left edge, so that the smoothed line does not depend on the zoom
const WARM_UP_SHARE = 0.25;
const AUTO_SHARE = 0.012;
const DIGITS = [1, 2, 5];
const TICKS_EVERY_PX = 110;
const TWO_LINES_PX = 14;

/**
 * @param {() => object} current the page's data, which changes when the server's HTML is read again
 * @param {(steps: [number, number]|null) => void} onRange called when the reader changes the steps shown
 */
export function lossView(current, onRange) {
  const place = $('#loss');
  let view = readView();
  let read = null;
  let ticks = null;
  let asked = 0;
  let wired = false;
  let pointer = null;
  let late = false; // something came while the pointer was down on the chart

  /** Whether new steps would be seen. */
  const follows = () => view.last != null || view.range == null || view.range[1] >= (current().last ?? 0);
  const extent = (data) => (data.first == null ? null : [data.first, data.last]);

  /** The steps shown; null for the whole run. */
  function shown() {
    const data = current();
    if (view.last == null) return view.range;
    return data.last == null ? null : [Math.max(data.first ?? 0, data.last - view.last), Math.max(data.last, 1)];
  }

  /** The steps read: more than shown on the left, where the smoothed line warms up. */
  function wanted(data) {
    const steps = shown();
    if (!steps) return null;
    const width = steps[1] - steps[0];
    const before = Math.min(WARM_UP_HALVES * (view.half ?? width * AUTO_SHARE), width * WARM_UP_SHARE);
    return [Math.max(data.first ?? 0, Math.floor(steps[0] - before)), steps[1]];
  }

  async function load() {
    const data = current();
    const ticket = (asked += 1);
    const points = Math.min(MAX_POINTS, Math.max(MIN_POINTS, place.clientWidth));
    const window = { points, steps: wanted(data) };
    try {
      const [own, proof, baseline, old, texts] = await Promise.all([
        scalars(data.run, ['loss', 'grad_norm'], window),
        data.proof ? optional(series(data.run, data.proof.tensor, data.proof.stat, window)) : {},
        data.baseline ? optional(scalars(data.baseline, ['loss'], { points, steps: window.steps ?? extent(data) })) : {},
        abandoned(data, window.steps),
        readTicks(data),
      ]);
      if (ticket !== asked) return; // a newer answer is on its way
      read = { ...own, proof, baseline: baseline.loss, old };
      ticks = texts;
      await redraw();
      renewed(place);
    } catch (error) {
      if (ticket === asked) fail(place, say('The loss could not be loaded: {why}. It is tried again on the next step.', { why: error.message }), load);
    }
  }

  /** What may be missing without being an error: the chart then has one curve less. */
  async function optional(request) {
    try {
      return await request;
    } catch (error) {
      if (error.status === 404 || error.status === 422) return {};
      throw error;
    }
  }

  /** Steps that were trained, and then again after a resume from before them. */
  function abandoned(data, steps) {
    const pieces = data.segments.slice(0, -1).map(([segment], index) => {
      const from = Math.max(data.segments[index + 1][1], steps?.[0] ?? 0);
      return optional(get(`/api/v1/runs/${encodeURIComponent(data.run)}/scalars`, { names: 'loss', segment, from, to: steps && Math.ceil(steps[1]), points: MIN_POINTS }));
    });
    return Promise.all(pieces).then((answers) => answers.map((answer) => answer.series?.loss).filter(Boolean));
  }

  async function readTicks(data) {
    if (view.x === 'step' || data.last == null) return null;
    const [from, to] = shown() ?? extent(data);
    const count = Math.min(20, Math.max(2, Math.floor(place.clientWidth / TICKS_EVERY_PX)));
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    return optional(get(`/api/v1/runs/${encodeURIComponent(data.run)}/ticks`, { axis: view.x, from: Math.floor(from), to: Math.ceil(to), count, zone, lang: language }));
  }

  const half = () => view.half ?? halfLifeSteps(readBins(read?.loss));

  async function redraw() {
    late = Boolean(pointer?.isHeld());
    if (!read || late) return;
    const data = current();
    const { log, full } = view;
    const figure = fillLoss(data.frames.loss, read, { onset: data.onset, log, half: half(), full, range: shown() });
    if (ticks?.ticks?.length) {
      figure.layout.xaxis.tickvals = ticks.ticks.map(({ step }) => step);
      figure.layout.xaxis.ticktext = ticks.ticks.map(({ text }) => text);
      figure.layout.xaxis.title.text = ticks.title;
      if (ticks.ticks.some(({ text }) => text.includes('<br>'))) figure.layout.margin.b += TWO_LINES_PX;
    }
    place.classList.toggle('three-panels', data.proof != null);
    await draw(place, figure, data);
    if (!wired) wire();
    notes(data);
  }

  function wire() {
    wired = true;
    import('./zoom.js').then(({ zoomable }) => {
      pointer = zoomable(place, zoom, () => late && redraw());
    });
    place.on('plotly_clickannotation', ({ annotation }) => annotation.name === 'outside' && change({ full: true }));
  }

  /** Another view: into the address, and drawn. */
  function change(values, { reload = false, commit = true } = {}) {
    view = { ...view, ...values };
    putView(view, { commit });
    controls();
    return reload ? load() : redraw();
  }

  function zoom(steps) {
    pointer?.drop();
    return move({ range: steps && [Math.max(0, Math.floor(steps[0])), Math.ceil(steps[1])], last: null });
  }

  /** The newest steps, as many as are shown now, and those to come: the window moves with the run. */
  const newest = () => move({ range: null, last: view.range ? view.range[1] - view.range[0] : null });

  function move(values) {
    const done = change(values, { reload: true });
    onRange(shown());
    return done;
  }

  function controls() {
    const data = current();
    const steps = shown();
    const around = view.range != null && data.onset != null && String(view.range) === String(aroundOnset(data));
    $('#whole').setAttribute('aria-pressed', String(steps == null));
    $('#around').setAttribute('aria-pressed', String(around));
    $('#around').hidden = data.onset == null;
    $('#whole').hidden = data.onset == null && steps == null;
    for (const button of $$('[data-x]')) button.setAttribute('aria-pressed', String(button.dataset.x === view.x));
    $('#log').checked = view.log;
    const button = $('#newest');
    const behind = view.range != null && data.last != null && data.last > view.range[1];
    button.hidden = !behind;
    if (behind) button.textContent = say('Newest step {step}', { step: stepText(data.last) });
    slider(data);
  }

  /** Half-lives of the slider: none, then round numbers up to a third of what is shown. */
  function halves(data) {
    const [from, to] = shown() ?? extent(data) ?? [0, 1];
    const found = [0];
    for (let power = 1; power <= (to - from) / 3; power *= 10) {
      found.push(...DIGITS.map((digit) => digit * power).filter((value) => value <= Math.max(1, (to - from) / 3)));
    }
    return found;
  }

  function slider(data) {
    const input = $('#half');
    const choices = halves(data);
    input.max = String(choices.length - 1);
    const now = half();
    const at = choices.findLastIndex((value) => value <= now);
    if (document.activeElement !== input) input.value = String(Math.max(0, at));
    const words = now ? plural('{n} step', '{n} steps', now) : say('off');
    $('#half-words').textContent = words;
    input.setAttribute('aria-valuetext', now ? plural('half-life of {n} step', 'half-life of {n} steps', now) : say('off'));
  }

  function aroundOnset(data) {
    const last = data.last ?? data.onset;
    const wide = Math.max(AROUND_MIN_STEPS, Math.round((last - (data.first ?? 0)) * AROUND_SHARE));
    return [Math.max(0, data.onset - wide), data.onset + wide];
  }

  function notes(data) {
    const text = lossWords(read, {
      half: half(), shown: shown(), widthPx: place.clientWidth, log: view.log, missingBaseline: data.baseline && !read.baseline,
    });
    const why = view.x !== 'step' && !ticks?.ticks?.length ? ` ${ticks?.why ?? say('This axis has nothing to say for these steps.')}` : '';
    const zoomed = shown() ? ` ${say('Double click or Esc shows the whole run.')}` : '';
    if ($('#loss-note').textContent !== text + why + zoomed) $('#loss-note').textContent = text + why + zoomed;
    const outside = view.full ? '' : outsideText(read, { log: view.log, shown: shown() });
    const button = $('#outside');
    button.hidden = !outside && !view.full;
    button.textContent = view.full ? say('Leave far values out again') : say('{outside}: show all', { outside });
    controls();
    tools.refresh();
  }

  function rangeWords() {
    const [from, to] = shown() ?? extent(current()) ?? [null, null];
    return from == null ? '' : say('steps {from} to {to}', { from: stepText(from), to: stepText(to) });
  }

  const tools = chartTools({
    host: $('#loss-tools'),
    chart: place,
    after: $('#loss-after'),
    title: () => say('Training loss'),
    run: () => current().name,
    range: rangeWords,
    table: async () => {
      const { lossTable } = await import('./loss_table.js');
      const data = current();
      return lossTable(read ?? {}, { proofWords: data.proof?.words ?? '', half: half(), shown: shown() });
    },
  });

  $('#log').addEventListener('change', () => change({ log: $('#log').checked }));
  $('#half').addEventListener('input', () => change({ half: halves(current())[Number($('#half').value)] }, { commit: false }));
  $('#half').addEventListener('change', () => change({ half: halves(current())[Number($('#half').value)] }, { reload: true }));
  $('#outside').addEventListener('click', () => change({ full: !view.full }));
  for (const button of $$('[data-x]')) button.addEventListener('click', () => change({ x: button.dataset.x }, { reload: true }));
  $('#whole').addEventListener('click', () => zoom(null));
  $('#newest').addEventListener('click', newest);
  $('#around').addEventListener('click', () => {
    announce(say('Showing the steps around the onset.'));
    zoom(aroundOnset(current()));
  });
  addEventListener('popstate', () => {
    view = readView();
    controls();
    onRange(shown());
    load();
  });
  controls();

  return {
    load,
    redraw,
    zoom,
    buttons: controls,
    shown,
    showOnset: () => current().onset != null && zoom(aroundOnset(current())),
    /** Back to the whole run, also from a zoom that has not settled yet. */
    reset: () => (pointer?.drop() || shown() != null) && zoom(null),
    /** Whether new steps would be seen: the right edge is in view. */
    follows,
    /** The address of what is shown now, with absolute steps. */
    link: () => location.origin + addressOf({ ...view, range: shown() ?? extent(current()), last: null }),
  };
}

