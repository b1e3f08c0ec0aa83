// Selecting incidents, and acting on all that are selected.
import { act, those } from './alerts_actions.js';
import { idsOf, refresh, rows } from './alerts_list.js';
import { $, $$ } from './core.js';
import { failure } from './notice.js';
import { say } from './say.js';

const SILENCE_CHOICES = 8;
const picked = new Set(); // keys of incidents
let working = false;

export const anyPicked = () => picked.size > 0;

/** Brings checkboxes and the bar in line with what is selected; what is no longer listed is not selected. */
export function drawPicks() {
  const there = rows();
  const keys = new Set(there.map((row) => row.dataset.key));
  for (const key of picked) if (!keys.has(key)) picked.delete(key);
  for (const row of there) if ($('.pick', row)) $('.pick', row).checked = picked.has(row.dataset.key);
  if (!$('#bulk')) return;
  $('#bulk').hidden = picked.size === 0;
  $('#tools').hidden = picked.size > 0;
  $('#pick-all').checked = false;
  if (!working) $('#bulk-count').textContent = say('{n} selected', { n: picked.size.toLocaleString('en-US') });
}

export function toggle(row, on = !picked.has(row.dataset.key)) {
  if (!$('.pick', row)) return;
  if (on) picked.add(row.dataset.key);
  else picked.delete(row.dataset.key);
  drawPicks();
}

export function pickNone() {
  picked.clear();
  drawPicks();
}

const chosen = () => rows().filter((row) => picked.has(row.dataset.key));

async function bulk(action) {
  if (working) return;
  if (action === 'silence') {
    await silenceRows(chosen());
    return;
  }
  working = true;
  for (const button of $$('#bulk button')) button.disabled = true;
  const lists = new Map(); // id of an alert -> key of its incident
  try {
    for (const row of chosen()) for (const id of those(await idsOf(row), action)) lists.set(id, row.dataset.key);
    const count = $('#bulk-count');
    const failed = await act([...lists.keys()], { action }, {
      onProgress: (done, all) => {
        count.textContent = say('{done} of {all} alerts done', { done, all });
      },
    });
    const stay = new Set(failed.map((id) => lists.get(id)));
    for (const key of [...picked]) if (!stay.has(key)) picked.delete(key);
  } catch (error) {
    failure(error);
  } finally {
    working = false;
    for (const button of $$('#bulk button')) button.disabled = false;
  }
  await refresh({ force: true });
}

/** The choices of a silence for these rows, or for the detail. */
function choices(items) {
  const where = new Map();
  const what = new Map();
  for (const item of items.slice(0, SILENCE_CHOICES)) {
    const { run, runName, project, cause, causeWord, family, familyWord } = item.dataset;
    where.set(`run:${run}`, say('Run {name}', { name: runName }));
    if (cause) what.set(`cause:${cause}`, causeWord);
    if (family) what.set(`family:${family}`, say('{family} (family)', { family: familyWord }));
    where.set(`project:${project}`, say('Project {name}', { name: project }));
  }
  return { where: [...where], what: [...what] };
}

/** Asks for a silence of these rows, or of the detail; of nothing in particular without them. */
export async function silenceRows(items) {
  const { askSilence } = await import('./silence_dialog.js'); // loaded when first asked for
  return askSilence(choices(items), () => refresh({ force: true }));
}

export function wireBulk() {
  document.addEventListener('change', (event) => {
    const box = event.target;
    if (box.matches?.('.pick')) toggle(box.closest('li[data-key]'), box.checked);
    if (box.id === 'pick-all') {
      for (const row of rows()) picked.add(row.dataset.key);
      drawPicks();
      $('[data-bulk]').focus();
    }
  });
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('[data-bulk]');
    if (button) bulk(button.dataset.bulk);
    else if (event.target.closest?.('#bulk-none')) {
      pickNone();
      $('#pick-all')?.focus();
    }
  });
}

