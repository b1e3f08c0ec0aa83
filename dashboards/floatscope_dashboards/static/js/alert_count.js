// The number of alerts that fire, in the top bar of every page.
import { get } from './api.js';
import { $ } from './core.js';
import { paced } from './swap.js';

const EVERY_MS = 3000;

/** Reads the number again, soon; many calls are few requests. */
export const freshAlertCount = paced(async () => {
  let firing;
  try {
    ({ firing } = await get('/api/v1/alerts', { state: 'firing', limit: 1 }));
  } catch {
    return; // the live chip or a strip says that the server does not answer
  }
  const count = $('#alerts-open');
  if (!count || !Number.isInteger(firing)) return;
  if (count.firstChild.data !== String(firing)) count.firstChild.data = String(firing);
  count.hidden = !firing;
}, EVERY_MS);
