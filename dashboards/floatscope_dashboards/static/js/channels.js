// Channels: sending a test, switching, adding, changing and deleting them, and what became of their messages.
import { get, send } from './api.js';
import { $, $$, NO_VALUE, element } from './core.js';
import { ask } from './dialog.js';
import { failure, notice } from './notice.js';
import { say } from './say.js';
import { swap } from './swap.js';
import { localTime } from './times.js';

const SHOWN = 20;
const LOOK_AGAIN_MS = 1000;
const forms = () => import('./channel_form.js'); // read when somebody adds or changes one
const address = (id, what = '') => `/api/v1/channels/${encodeURIComponent(id)}${what}`;

/** @param {object} data of the page @param {() => Promise<void>} refresh reads the page again */
export function wireChannels(data, refresh) {
  $('#add-channel').addEventListener('click', async () => {
    try {
      (await forms()).addChannel(refresh);
    } catch (error) {
      failure(error);
    }
  });
  $('#channel-list').addEventListener('click', async (event) => {
    const button = event.target.closest('[data-act]');
    if (!button) return;
    const card = button.closest('[data-channel]');
    const { channel: id } = card.dataset;
    try {
      await ({ test, on: () => turn(id, true, refresh), off: () => turn(id, false, refresh), edit: async () => (await forms()).changeChannel(id, refresh), delete: () => remove(id, refresh), retry: () => retry(card, button, refresh) }[button.dataset.act])(card, button);
    } catch (error) {
      failure(error);
    }
  });
  $('#channel-list').addEventListener(
    'toggle',
    (event) => {
      if (event.target.matches('.del') && event.target.open) deliveries(event.target.closest('[data-channel]'));
    },
    true,
  );
}

/** Whether a message of some channel has neither arrived nor been given up. */
export const isOnItsWay = () => Boolean($('[data-pending]'));

/** Puts a freshly read page's channels in place: all of them when there are others than before. @param {Document} page */
export function freshChannels(page) {
  const ids = (root) => $$('[data-channel]', root).map((card) => card.dataset.channel).join(' ');
  if (ids($('#channel-list')) !== ids($('#channel-list', page))) swap($('#channel-list'), $('#channel-list', page));
}

async function test(card, button) {
  const place = $('.tested', card);
  button.disabled = true;
  place.hidden = false;
  place.className = 'res tested idle';
  place.textContent = say('Sending a test message');
  try {
    const found = await send('POST', address(card.dataset.channel, '/test'));
    const took = say('{s} s', { s: found.took_s });
    place.className = `res tested ${found.delivered ? 'ok' : 'crit'}`;
    if (found.delivered) {
      place.textContent = found.status ? say('Test received {time}, HTTP {status} in {took}', { time: localTime(new Date()), status: found.status, took }) : say('Test received {time}, in {took}', { time: localTime(new Date()), took });
    } else {
      place.textContent = say('The test did not arrive: {why}', { why: found.error });
    }
  } catch (error) {
    place.className = 'res tested crit';
    place.textContent = say('The test could not be sent: {why}', { why: error.message });
  } finally {
    button.disabled = false;
  }
}

async function turn(id, enabled, refresh) {
  await send('PATCH', address(id), { enabled });
  const text = enabled ? say('The channel is on again.') : say('The channel is off. What waited on it is not sent any more.');
  notice(text, {
    undo: async () => {
      await send('PATCH', address(id), { enabled: !enabled });
      await refresh();
    },
  });
  await refresh();
}

async function remove(id, refresh) {
  const channel = await get(address(id));
  const done = await ask({
    title: say('Delete the channel {name}?', { name: channel.name }),
    text: say('Its address, its secret and the record of its deliveries go with it. This cannot be undone.'),
    confirm: say('Delete'),
    danger: true,
    send: () => send('DELETE', address(id)),
  });
  if (!done) return;
  notice(say('The channel {name} is deleted.', { name: channel.name }));
  await refresh();
}

// ---- what became of its messages
const STATES = () => ({ pending: ['idle', say('waits')], sent: ['ok', say('arrived')], dead: ['crit', say('given up')] });

async function deliveries(card) {
  const place = $('.deliveries', card);
  const may = !$('[data-act=test]', card).disabled;
  try {
    const found = await get(address(card.dataset.channel, '/deliveries'), { limit: SHOWN });
    place.replaceChildren(found.items.length ? table(found.items, may) : element('p', { text: say('Nothing was sent yet. Tests are not listed.') }));
    if (found.next_cursor) place.append(element('p', { text: say('The newest {n} are shown.', { n: SHOWN }) }));
  } catch (error) {
    place.replaceChildren(element('p', { className: 'err', text: error.message }));
  }
}

function table(items, may) {
  const made = element('table');
  const head = element('tr');
  for (const text of [say('Message'), say('State'), say('When'), say('Tries'), say('Why not')]) {
    const cell = element('th', { text });
    cell.scope = 'col';
    head.append(cell);
  }
  made.createTHead().append(head);
  const body = made.createTBody();
  for (const item of items) {
    const link = element('a', { text: item.event });
    link.href = `/alerts/${encodeURIComponent(item.alert)}`;
    const [kind, word] = STATES()[item.state];
    const at = item.finished ?? item.due ?? item.created;
    const time = element('time', { text: localTime(new Date(at), 'date') });
    time.dateTime = at;
    time.title = `${at.slice(0, 19).replace('T', ' ')} UTC`;
    const why = element('td', { className: 'why', text: item.error ?? NO_VALUE });
    if (may && (item.state === 'dead' || item.error)) {
      const button = element('button', { className: 'btn sm', text: item.state === 'dead' ? say('Send again') : say('Try now') });
      button.type = 'button';
      button.dataset.act = 'retry';
      button.dataset.number = item.number;
      why.append(' ', button);
    }
    const state = element('td', { className: kind, text: item.state === 'pending' && item.attempts ? say('waits, next try') : word });
    body.append(element('tr', {}, element('td', {}, link), state, element('td', {}, time), element('td', { className: 'r num', text: String(item.attempts) }), why));
  }
  return made;
}

/** The message may take a moment to arrive: the page is read again until it did. */
async function retry(card, button, refresh) {
  await send('POST', address(card.dataset.channel, `/deliveries/${button.dataset.number}/retry`));
  notice(say('It is sent again.'));
  $('summary', card).focus();
  setTimeout(async () => {
    await deliveries(card);
    await refresh();
  }, LOOK_AGAIN_MS);
}
