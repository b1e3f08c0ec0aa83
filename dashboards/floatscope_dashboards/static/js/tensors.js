// The table of all tensors: rows by keyboard, all numbers as CSV, fresh while the run goes on.
import { $, $$, setAddress, wireNumber } from './core.js';
import { get } from './api.js';
import { quietWord, startLive } from './live.js';
import { failure, notice } from './notice.js';
import { plural, say } from './say.js';
import { startShell } from './shell.js';
import { paced, readAgain, swapParts } from './swap.js';

const PAGE_EVERY_MS = 4000;

let data = JSON.parse($('#page-data').textContent);
let chosen = -1;

async function refresh() {
  if ($('#rows')?.matches(':hover, :focus-within')) return; // rows never jump under the pointer or the focus
  const fresh = await readAgain();
  if (!fresh) return;
  data = fresh.data;
  swapParts(fresh.page);
  mark();
}
const askPage = paced(refresh, PAGE_EVERY_MS);

const rows = () => $$('#rows tr');

function mark() {
  rows().forEach((row, index) => row.classList.toggle('on', index === chosen));
}

function choose(by) {
  const all = rows();
  if (!all.length) return;
  chosen = Math.min(all.length - 1, Math.max(0, chosen + by));
  mark();
  const link = $('a', all[chosen]);
  link.focus();
}

// ---- CSV
/** A field as spreadsheets read it; a name that begins like a formula is kept a text. */
function field(value) {
  const text = value == null ? '' : String(value);
  const safe = /^[=+@\t\r-]/.test(text) && typeof value === 'string' ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function numberField(value) {
  const number = wireNumber(value);
  if (number == null) return '';
  return Number.isNaN(number) ? 'NaN' : number === Infinity ? 'Infinity' : number === -Infinity ? '-Infinity' : String(number);
}

async function save() {
  const button = $('#csv');
  button.disabled = true;
  try {
    const frame = await get(`/api/v1/runs/${encodeURIComponent(data.run)}/frame`, { step: data.at, rank: data.rank });
    const stats = Object.keys(frame.stats);
    const lines = [['tensor', 'step', ...stats].join(',')];
    frame.tensors.forEach((name, index) => {
      lines.push([field(name), frame.step, ...stats.map((stat) => numberField(frame.stats[stat].values[index]))].join(','));
    });
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([`${lines.join('\n')}\n`], { type: 'text/csv' }));
    link.download = `${data.run}-tensors-step-${frame.step ?? 'none'}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    notice(plural('{n} tensor saved', '{n} tensors saved', frame.tensors.length));
  } catch (error) {
    failure(say('The numbers could not be saved: {why}', { why: error.message }));
  } finally {
    button.disabled = false;
  }
}
document.addEventListener('click', (event) => {
  if (event.target.closest?.('#csv')) save();
});

// ---- the form: empty fields stay out of the address, and a choice is taken at once
const form = $('#filter');
form.addEventListener('formdata', (event) => {
  for (const [name, value] of [...event.formData]) if (value === '') event.formData.delete(name);
});
for (const select of $$('select', form)) select.addEventListener('change', () => form.requestSubmit());

startShell({
  keys: {
    j: { run: () => choose(1), text: say('Next row') },
    k: { run: () => choose(-1), text: say('Previous row') },
    ']': { run: () => $('#after')?.click(), text: say('Next page of the table') },
    '[': { run: () => $('#before')?.click(), text: say('Previous page of the table') },
    f: {
      run: (event) => {
        event.preventDefault();
        $('#q').focus();
      },
      text: say('Search by name'),
    },
    Escape: () => document.activeElement?.blur(),
  },
});
startLive({
  url: `/api/v1/events?run=${encodeURIComponent(data.run)}`,
  ageS: data.age_s,
  notLive: () => quietWord(data.status),
  onEvent: () => data.at == null && askPage(),
  onResume: () => askPage({ soon: true }),
});
setAddress({}); // drops an empty query
