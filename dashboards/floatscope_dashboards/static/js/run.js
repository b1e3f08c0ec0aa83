// The run page: draws its charts, keeps the verdict and the charts fresh while the run goes on.
import { $, announce, copyText, stepText } from './core.js';
import { quietWord, startLive } from './live.js';
import { lossView } from './loss_view.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';
import { startShell } from './shell.js';
import { paced, readAgain, swapParts } from './swap.js';
import { wireActions } from './verdict_actions.js';

const LOSS_EVERY_MS = 2000;
const HEAT_EVERY_MS = 5000;
const PAGE_EVERY_MS = 4000;
const SCRUB_FAST = 10;

let data = JSON.parse($('#page-data').textContent);
let loss = null;
let pictures = null;
const current = () => data;

loss = lossView(current, () => pictures?.load());
// What is further down comes after the loss, which must not wait for it.
const opened = import('./pictures.js').then(({ startPictures }) => {
  pictures = startPictures(current, () => loss.shown(), (steps) => loss.zoom(steps));
  askPictures({ soon: true });
});
const actions = wireActions(current, () => askPage({ soon: true }));

/** Reads the page again and puts what the server says now in place: verdict, numbers, evidence, figure frames. */
async function refresh() {
  const fresh = await readAgain();
  if (!fresh) return;
  const before = data;
  data = fresh.data;
  swapParts(fresh.page);
  actions.restore();
  pictures?.refreshed();
  loss.buttons();
  if (data.headline !== before.headline || data.health !== before.health) announce(say('Verdict: {what}', { what: data.headline }));
  const redraw = data.onset !== before.onset || data.baseline !== before.baseline || JSON.stringify(data.proof) !== JSON.stringify(before.proof);
  if (redraw || data.stats.length !== before.stats.length) {
    askLoss({ soon: true });
    askPictures({ soon: true });
  }
}

const askLoss = paced(() => loss.load(), LOSS_EVERY_MS);
const askPictures = paced(() => pictures?.load(), HEAT_EVERY_MS);
const askPage = paced(refresh, PAGE_EVERY_MS);

function onEvent(kind, event) {
  if (kind !== 'tick') {
    askPage({ soon: true });
    return;
  }
  if (Number.isInteger(event.step) && event.step > (data.last ?? -1)) {
    data.last = event.step;
    data.first ??= event.step;
    const place = $('#last-step');
    if (place) place.textContent = stepText(event.step);
  }
  if (loss.follows()) {
    askLoss();
    askPictures();
  } else {
    loss.buttons();
  }
  askPage();
}

function all() {
  askPage({ soon: true });
  askLoss({ soon: true });
  askPictures({ soon: true });
}

const scrubTo = (step) => opened.then(() => pictures.scrubTo(step));

function jump(what) {
  if (data.onset == null) return;
  if (what === 'onset') {
    loss.showOnset();
    $('#loss').scrollIntoView({ block: 'center', behavior: 'smooth' });
  }
  scrubTo(data.onset);
}

/** The step of the next finding after (or before) the one shown. */
let finding = -1;
function nextFinding(by) {
  if (!data.onsets.length) return;
  finding = (finding + by + data.onsets.length) % data.onsets.length;
  scrubTo(data.onsets[finding]);
  announce(say('Finding at step {step}', { step: stepText(data.onsets[finding]) }));
}

async function copyView() {
  try {
    await copyText(loss.link());
    notice(say('Link copied: it shows these steps, also later'));
  } catch {
    failure(say('The browser does not allow to copy here.'));
  }
}

document.addEventListener('click', (event) => {
  const button = event.target.closest?.('[data-jump]');
  if (button) jump(button.dataset.jump);
  if (event.target.closest?.('#copy-view')) copyView();
});
const scrub = (columns, text) => ({
  text,
  run: (event) => {
    event.preventDefault();
    pictures?.move(columns);
  },
});
startShell({
  redraw: () => {
    loss.redraw();
    pictures?.redraw();
  },
  link: () => loss.link(),
  keys: {
    o: { run: () => jump('scrub'), text: say('Jump to the onset') },
    l: { run: () => $('#log').click(), text: say('Logarithmic loss') },
    a: { run: actions.acknowledge, text: say('Acknowledge') },
    n: { run: () => nextFinding(1), text: say('Next or previous finding') },
    p: { run: () => nextFinding(-1), text: say('Next or previous finding') },
    Escape: { run: () => loss.reset(), text: say('Show the whole run') },
    '[': scrub(-1, say('Move the step shown')),
    ']': scrub(1, say('Move the step shown')),
    '{': scrub(-SCRUB_FAST, say('Move the step shown by ten columns')),
    '}': scrub(SCRUB_FAST, say('Move the step shown by ten columns')),
  },
});

startLive({
  url: `/api/v1/events?run=${encodeURIComponent(data.run)}`,
  ageS: data.age_s,
  notLive: () => quietWord(data.status),
  onEvent,
  onResume: all,
});
askLoss({ soon: true });
