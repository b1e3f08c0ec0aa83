// What every page has: theme, copying, times in the reader's zone, search, single keys and their help.
// Each page calls `startShell` once:
//
//   startShell({
//     keys: { j: { run: () => step(1), text: say('Next row') }, Escape: () => reset() },
//     redraw: () => chart.redraw(),
//     link: () => address,
//   });
//
// keys: key -> {run(event), text}, or a function where the help names nothing. Keys with the same text share a line of
//   the help; 'g r' is two keys after each other. '/', '?', 't' and 'g ...' are the shell's own.
// redraw: the theme has changed.  link: what "Copy link" copies, if not the present address.
import { $, $$, copyText, goTo, toggleTheme, wireCopy, wireKeys, wireTheme } from './core.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';
import { checkSession } from './strips.js';
import { localTimes } from './times.js';

/** @typedef {((event: KeyboardEvent) => void) | {run: (event: KeyboardEvent) => void, text: string}} Key */

/** @param {{keys?: Record<string, Key>, redraw?: () => void, link?: () => string}} [page] */
export function startShell({ keys = {}, redraw = () => {}, link = () => location.href } = {}) {
  wireTheme(redraw);
  wireCopy();
  localTimes();
  for (const place of $$('[data-origin]')) place.textContent = location.origin;
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && $('#refused')) checkSession(); // maybe signed in again in another tab
  });
  const search = $('#search');
  if (!search) {
    wireKeys({ t: toggleTheme, ...keys });
    return;
  }
  const actions = {
    theme: toggleTheme,
    help: () => openHelp(all),
    link: () => copyText(link()).then(() => notice(say('Link copied')), () => failure(say('The browser does not allow to copy here.'))),
  };
  const openSearch = (event) => {
    event.preventDefault();
    later(import('./palette.js'), ({ openPalette }) => openPalette(actions));
  };
  search.addEventListener('click', openSearch);
  const own = {
    '/': { run: openSearch, text: say('Search runs, tensors and actions') },
    '?': { run: () => openHelp(all), text: say('Show these keys') },
    t: { run: toggleTheme, text: say('Switch between light and dark') },
    'g r': { run: () => goTo('/'), text: say('Go to runs') },
    'g c': { run: () => goTo('/compare'), text: say('Go to compare') },
    'g a': { run: () => goTo('/alerts'), text: say('Go to alerts') },
    'g u': { run: () => goTo('/rules'), text: say('Go to rules') },
    'g s': { run: () => goTo('/settings'), text: say('Go to settings') },
  };
  const all = { page: keys, own };
  wireKeys({ ...own, ...keys });
}

function openHelp(all) {
  later(import('./keys_help.js'), ({ showKeys }) => showKeys(all));
}

/** Loaded when first asked for: most visits need neither. */
function later(module, use) {
  module.then(use, () => failure(say('The server does not answer, so this cannot be loaded now.')));
}
