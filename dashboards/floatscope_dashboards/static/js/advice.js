// Precision advice: all of it is in the page; it is read again while the run goes on.
import { $, announce, copyText } from './core.js';
import { quietWord, startLive } from './live.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';
import { startShell } from './shell.js';
import { paced, readAgain, swapParts } from './swap.js';

const PAGE_EVERY_MS = 30_000; // it is worked out from the whole run

let data = JSON.parse($('#page-data').textContent);

async function refresh() {
  const fresh = await readAgain();
  if (!fresh) return;
  const before = $('#advice-h').textContent;
  data = fresh.data;
  swapParts(fresh.page);
  if ($('#advice-h').textContent !== before) announce($('#advice-h').textContent);
}
const askPage = paced(refresh, PAGE_EVERY_MS);

document.addEventListener('click', (event) => {
  if (!event.target.closest?.('#copy-link')) return;
  copyText(location.href).then(() => notice(say('Link copied')), () => failure(say('The browser does not allow to copy here.')));
});
document.addEventListener('change', (event) => {
  if (event.target.id === 'gpu') event.target.form.submit();
});
startShell();
startLive({
  url: `/api/v1/events?run=${encodeURIComponent(data.run)}`,
  ageS: data.age_s,
  notLive: () => quietWord(data.status),
  onEvent: () => askPage(),
  onResume: () => askPage({ soon: true }),
});
