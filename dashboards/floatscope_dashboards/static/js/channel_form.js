// The dialogs that add and change a channel. Its address and its secret go in and never come out; a secret that the
// server made is shown this once.
import { get, send } from './api.js';
import { element } from './core.js';
import { ask, openDialog } from './dialog.js';
import { notice } from './notice.js';
import { say } from './say.js';
import { localTime } from './times.js';

const MIN_S = 60;
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const DAYS = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'];
const readerZone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';

const kinds = () => [
  ['slack', say('Slack'), say('An incoming webhook of a Slack channel.')],
  ['webhook', say('Webhook'), say('Signed JSON to an address of yours.')],
  ['apprise', say('Apprise'), say('Mail, Discord, Teams, PagerDuty, Telegram and others, by the addresses of the Apprise library.')],
];
const addressHint = (kind) =>
  ({
    slack: say('The address of the incoming webhook. It is never shown again.'),
    webhook: say('http or https. It must be a public address unless the server allows private ones. It is never shown again.'),
    apprise: say('Such as mailto://, discord://, workflows:// or pagerduty://. It is never shown again.'),
  })[kind];

/** Asks for the kind, then for the rest. @param {() => Promise<void>} refresh */
export function addChannel(refresh) {
  let chosen = null;
  const list = element('div', { className: 'kinds' });
  const dialog = openDialog([element('h2', { text: say('New channel') }), list], {
    label: say('New channel'),
    className: 'stk',
    onClose: () => chosen && form(chosen, null, refresh),
  });
  for (const [kind, word, text] of kinds()) {
    const button = element('button', {}, element('b', { text: word }), element('span', { text }));
    button.type = 'button';
    button.addEventListener('click', () => {
      chosen = kind;
      dialog.close();
    });
    list.append(button);
  }
}

/** @param {string} id */
export async function changeChannel(id, refresh) {
  const channel = await get(`/api/v1/channels/${encodeURIComponent(id)}`);
  await form(channel.kind, channel, refresh);
}

async function form(kind, first, refresh) {
  let channel = first; // as it was last read: what this form replaces
  const fromSettings = channel?.id === 'slack-environment';
  const found = await ask({
    title: channel ? say('Change {name}', { name: channel.name }) : say('New channel: {kind}', { kind: kinds().find(([name]) => name === kind)[1] }),
    confirm: channel ? say('Save') : say('Add'),
    fields: fieldsOf(kind, channel, fromSettings),
    send: async (values) => {
      const body = bodyOf(kind, channel, values);
      if (!channel) return send('POST', '/api/v1/channels', { kind, ...body });
      const address = `/api/v1/channels/${encodeURIComponent(channel.id)}`;
      try {
        return await send('PATCH', address, { ...body, as_of: channel.updated });
      } catch (error) {
        if (error.status !== 409) throw error;
        const before = channel;
        channel = await get(address);
        throw new Error(behind(before, channel));
      }
    },
  });
  if (!found) return;
  notice(channel ? say('The channel {name} is changed.', { name: found.answer.name }) : say('The channel {name} is added. Send a test to see whether it arrives.', { name: found.answer.name }));
  await refresh();
  if (found.answer.secret) showSecret(found.answer);
}

/** What somebody else did to the channel while it was being edited. */
function behind(before, now) {
  const words = { name: say('Name'), host: say('Address'), min_severity: say('Told from which severity'), projects: say('Projects'), enabled: say('On or off'), repeat_s: say('Repeats'), escalate_s: say('When it is told'), quiet: say('Quiet hours') };
  const changed = Object.keys(words).filter((key) => JSON.stringify(before[key]) !== JSON.stringify(now[key]));
  const values = { name: now.updated_by ?? say('Somebody'), time: localTime(new Date(now.updated)), what: changed.map((key) => words[key]).join(', ') };
  return changed.length
    ? say('{name} changed this channel at {time} while you were editing: {what}. Your values are still in the fields; save again to put them in place of theirs.', values)
    : say('{name} saved this channel at {time} while you were editing. Your values are still in the fields; save again to put them in place of theirs.', values);
}

function fieldsOf(kind, channel, fromSettings) {
  const quiet = channel?.quiet;
  const found = [{ name: 'name', label: say('Name'), value: channel?.name, required: true, max: 200 }];
  if (!fromSettings) {
    const word = channel ? say('New address') : say('Address');
    const hint = channel ? say('Empty: stays as it is. {host} now.', { host: channel.host ?? say('not known') }) : addressHint(kind);
    found.push({ name: 'url', label: word, required: !channel, hint });
  }
  if (kind === 'webhook') {
    found.push({ name: 'secret', label: channel ? say('New secret') : say('Secret'), hint: channel ? say('16 to 256 characters; empty: stays as it is.') : say('16 to 256 characters; empty: the server makes one and shows it once.') });
    if (channel) found.push({ name: 'new_secret', label: say('Let the server make a new secret'), type: 'checkbox', hint: say('The old one counts no more as soon as you save.') });
  }
  found.push(
    { name: 'min_severity', label: say('Told from which severity'), type: 'select', value: channel?.min_severity ?? 'warning', options: [['info', say('Notes and worse')], ['warning', say('Warning and worse')], ['critical', say('Critical only')]] },
    { name: 'projects', label: say('Projects, one a line'), type: 'textarea', value: (channel?.projects ?? []).join('\n'), hint: say('Empty: every project.') },
    { name: 'repeat_s', label: say('Tells again of what nobody acknowledged'), type: 'select', value: String(channel?.repeat_s ?? ''), options: times(channel?.repeat_s, say('Never'), [15 * MIN_S, 30 * MIN_S, HOUR_S, 4 * HOUR_S, DAY_S]) },
    { name: 'escalate_s', label: say('When it is told'), type: 'select', value: String(channel?.escalate_s ?? ''), options: escalations(channel?.escalate_s) },
    { name: 'from', label: say('Quiet from'), type: 'time', value: quiet?.from, hint: say('In quiet hours only critical alerts are told. Both times empty: none.') },
    { name: 'to', label: say('Quiet until'), type: 'time', value: quiet?.to },
    { name: 'days', label: say('On the days on which they begin'), type: 'checks', value: quiet?.days ?? DAYS, options: [['mon', say('Mon')], ['tue', say('Tue')], ['wed', say('Wed')], ['thu', say('Thu')], ['fri', say('Fri')], ['sat', say('Sat')], ['sun', say('Sun')]] },
    { name: 'zone', label: say('Time zone of the quiet hours'), value: quiet?.zone ?? readerZone, max: 64 },
  );
  return found;
}

const durationWords = (s) => (s % DAY_S === 0 ? say('{n} d', { n: s / DAY_S }) : s % HOUR_S === 0 ? say('{n} h', { n: s / HOUR_S }) : say('{n} min', { n: Math.round(s / MIN_S) }));

/** Choices of a time, the present one among them. */
function times(now, none, some) {
  const all = [...new Set(now ? [...some, now] : some)].sort((a, b) => a - b);
  return [['', none], ...all.map((s) => [String(s), say('Every {time}', { time: durationWords(s) })])];
}

function escalations(now) {
  const some = [5 * MIN_S, 15 * MIN_S, 30 * MIN_S, HOUR_S, 4 * HOUR_S];
  const all = [...new Set(now ? [...some, now] : some)].sort((a, b) => a - b);
  return [['', say('At once')], ...all.map((s) => [String(s), say('Only of what nobody acknowledged for {time}', { time: durationWords(s) })])];
}

function bodyOf(kind, channel, values) {
  if (Boolean(values.from) !== Boolean(values.to)) throw new Error(say('Quiet hours need both times, or none.'));
  if (values.from && !values.days.length) throw new Error(say('Choose at least one day for the quiet hours.'));
  const body = {
    name: values.name,
    min_severity: values.min_severity,
    projects: values.projects.split('\n').map((name) => name.trim()).filter(Boolean),
    repeat_s: values.repeat_s === '' ? null : Number(values.repeat_s),
    escalate_s: values.escalate_s === '' ? null : Number(values.escalate_s),
    quiet: values.from ? { zone: values.zone || 'UTC', from: values.from, to: values.to, days: values.days } : null,
  };
  if (values.url) body.url = values.url.trim();
  if (kind === 'webhook' && values.secret) body.secret = values.secret;
  if (channel && values.new_secret) body.new_secret = true;
  return body;
}

/** A secret that the server made: now or never. */
function showSecret({ name, secret }) {
  const code = element('pre', { text: secret });
  code.id = 'channel-secret';
  code.tabIndex = 0;
  const copy = element('button', { className: 'btn sm', text: say('Copy') });
  copy.type = 'button';
  copy.dataset.copy = '#channel-secret';
  const done = element('button', { className: 'btn pri', text: say('I have it') });
  const title = say('The secret of {name}', { name });
  const text = element('p', { className: 'muted', text: say('The receiver needs it to tell genuine messages from others. It is shown this once.') });
  const dialog = openDialog([element('h2', { text: title }), text, element('div', { className: 'codebox' }, code, copy), element('div', { className: 'ends' }, done)], { label: title, className: 'stk' });
  done.addEventListener('click', () => dialog.close());
}
