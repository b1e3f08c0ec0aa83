// The run page: draws its charts, keeps the verdict and the charts fresh while the run goes on.
import { $, announce, stepText, wireCopy, wireKeys, wireTheme } from './core.js';
import { heatView } from './heat_view.js';
import { startLive } from './live.js';
import { lossView } from './loss_view.js';
import { paced, readPage, swapParts } from './swap.js';

const LOSS_EVERY_MS = 2000;
const HEAT_EVERY_MS = 5000;
const PAGE_EVERY_MS = 4000;
const SCRUB_FAST = 10;
const NOT_LIVE = { stalled: 'Last data', finished: 'Finished', failed: 'Failed', crashed: 'Crashed' };

let data = JSON.parse($('#page-data').textContent);
let steps = null;
const current = () => data;

const heat = heatView(current, () => steps);
const loss = lossView(current, (range) => {
  steps = range;
  heat.load();
});

/** Reads the page again and puts what the server says now in place: verdict, numbers, evidence, figure frames. */
async function refresh() {
  let page;
  try {
    page = await readPage();
  } catch {
    return; // the chip says that the server does not answer; the next event tries again
  }
  const block = page && $('#page-data', page);
  if (!block) return;
  const before = data;
  data = JSON.parse(block.textContent);
  swapParts(page);
  heat.refreshed();
  loss.buttons();
  if (data.headline !== before.headline || data.health !== before.health) announce(`Verdict: ${data.headline}`);
  const redraw = data.onset !== before.onset || JSON.stringify(data.proof) !== JSON.stringify(before.proof);
  if (redraw || data.stats.length !== before.stats.length) {
    askLoss({ soon: true });
    askHeat({ soon: true });
  }
}

const askLoss = paced(() => loss.load(), LOSS_EVERY_MS);
const askHeat = paced(() => heat.load(), HEAT_EVERY_MS);
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
    askHeat();
  } else {
    loss.buttons();
  }
  askPage();
}

function all() {
  askPage({ soon: true });
  askLoss({ soon: true });
  askHeat({ soon: true });
}

function jump(what) {
  if (data.onset == null) return;
  if (what === 'onset') {
    loss.showOnset();
    $('#loss').scrollIntoView({ block: 'center', behavior: 'smooth' });
  }
  heat.scrubTo(data.onset);
}

wireTheme(() => {
  loss.redraw();
  heat.redraw();
});
wireCopy();
document.addEventListener('click', (event) => {
  const button = event.target.closest?.('[data-jump]');
  if (button) jump(button.dataset.jump);
});
const scrub = (columns) => (event) => {
  event.preventDefault();
  heat.move(columns);
};
wireKeys({
  t: () => $('#theme').click(),
  o: () => jump('scrub'),
  l: () => $('#log').click(),
  Escape: () => loss.reset(),
  '[': scrub(-1),
  ']': scrub(1),
  '{': scrub(-SCRUB_FAST),
  '}': scrub(SCRUB_FAST),
});

startLive({
  url: `/api/v1/events?run=${encodeURIComponent(data.run)}`,
  ageS: data.age_s,
  notLive: () => NOT_LIVE[data.status] ?? '',
  onEvent,
  onResume: all,
});
askLoss({ soon: true });
askHeat({ soon: true });
