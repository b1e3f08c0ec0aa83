// Settings: tokens are made and ended here; the choices of this browser are kept in it.
import { send } from './api.js';
import { choose, chosen } from './choices.js';
import { $, $$, setTheme } from './core.js';
import { ask } from './dialog.js';
import { startLive } from './live.js';
import { failure, notice } from './notice.js';
import { language, say } from './say.js';
import { startShell } from './shell.js';
import { readPage, swapParts } from './swap.js';

const DAY_MS = 86_400_000;
const YEAR_S = 31_536_000;
const MOST_NAME = 200;
const { scopes } = JSON.parse($('#page-data').textContent);

startShell();
startLive({ url: '/api/v1/events', ageS: null, notLive: () => '', onEvent: () => {}, onResume: () => {} });

// ---- tokens
async function refresh() {
  try {
    const page = await readPage();
    if (page) swapParts(page);
  } catch (error) {
    failure(error);
  }
}

const LASTS = () => [
  ['', say('Never')],
  ['7', say('In a week')],
  ['30', say('In 30 days')],
  ['90', say('In 90 days')],
  ['365', say('In a year')],
];

async function makeToken() {
  const found = await ask({
    title: say('New token'),
    text: say('A token is shown once, when it is made. One for each trainer or person: each can be ended by itself.'),
    confirm: say('Make token'),
    fields: [
      { name: 'name', label: say('Name'), required: true, max: MOST_NAME, hint: say('For whom or what it is, such as "trainer fleet".') },
      { name: 'scopes', label: say('What it may do'), type: 'checks', value: ['read'], options: Object.entries(scopes).map(([scope, meaning]) => [scope, `${scope}: ${meaning}`]) },
      { name: 'expires', label: say('Expires'), type: 'select', options: LASTS(), value: '' },
    ],
    send: (values) => {
      if (!values.scopes.length) throw Object.assign(new Error(say('Choose what it may do.')), { field: 'scopes' });
      const expires = values.expires && new Date(Date.now() + Number(values.expires) * DAY_MS).toISOString();
      return send('POST', '/api/v1/tokens', { name: values.name.trim(), scopes: values.scopes, ...(expires && { expires }) });
    },
  });
  if (!found) return;
  $('#made-text').textContent = say('{name} was made. Copy it now: it is shown only once.', { name: found.answer.name });
  $('#made-token').textContent = found.answer.token;
  $('#made').hidden = false;
  $('#made-token').focus();
  await refresh();
}

async function endToken(button) {
  const { end, name, own } = button.dataset;
  const found = await ask({
    title: say('End the token {name}?', { name }),
    text: own
      ? say('This browser is signed in with it, so you are signed out at once. Whatever else uses it is refused from now on. It cannot be taken back.')
      : say('Whatever uses it is refused from now on, and browsers that are signed in with it are signed out. A trainer goes on and keeps its steps until it has a token that works. It cannot be taken back.'),
    confirm: say('End token'),
    danger: true,
    send: () => send('DELETE', `/api/v1/tokens/${encodeURIComponent(end)}`),
  });
  if (!found) return;
  notice(say('The token {name} has ended.', { name }));
  await refresh();
}

$('#new-token')?.addEventListener('click', makeToken);
$('#made-done').addEventListener('click', () => {
  $('#made-token').textContent = '';
  $('#made').hidden = true;
  $('#new-token').focus();
});
document.addEventListener('click', (event) => {
  const button = event.target.closest?.('[data-end]');
  if (button) endToken(button);
});

// ---- display
const remember = (name, value) => {
  if (choose(name, value)) notice(say('Remembered in this browser.'));
  else failure(say('This browser does not allow to remember it.'));
};
$('#set-theme').value = chosen('theme') ?? '';
$('#set-theme').addEventListener('change', (event) => setTheme(event.target.value || null));
document.addEventListener('themechange', () => {
  $('#set-theme').value = chosen('theme') ?? '';
});
$('#set-times').value = chosen('times') ?? '';
$('#set-times').addEventListener('change', (event) => {
  remember('times', event.target.value || null);
  refresh();
});
$('#set-keys').checked = chosen('keys') !== 'off';
$('#set-keys').addEventListener('change', (event) => remember('keys', event.target.checked ? null : 'off'));
$('#set-language').value = language;
$('#set-language').addEventListener('change', (event) => {
  document.cookie = `floatscope-language=${event.target.value}; path=/; max-age=${YEAR_S}; samesite=lax`;
  const address = new URL(location.href);
  address.searchParams.delete('lang'); // it would win over what was chosen now
  if (address.href === location.href) location.reload();
  else location.replace(address);
});

// ---- which section the address names
function here() {
  for (const link of $$('.setnav a')) {
    if (link.hash === (location.hash || '#tokens')) link.setAttribute('aria-current', 'true');
    else link.removeAttribute('aria-current');
  }
}
addEventListener('hashchange', here);
here();
