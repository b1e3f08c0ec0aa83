// The help of the keys: what this page's keys do, and those of every page. Loaded when it is asked for.
import { element, keysOn } from './core.js';
import { openDialog } from './dialog.js';
import { say } from './say.js';

const WORDS = () => ({
  ' ': say('Space'),
  Escape: 'Esc',
  ArrowUp: '\u2191',
  ArrowDown: '\u2193',
  ArrowLeft: '\u2190',
  ArrowRight: '\u2192',
});

/** @param {{page: Record<string, import('./shell.js').Key>, own: Record<string, import('./shell.js').Key>}} keys */
export function showKeys({ page, own }) {
  const rest = Object.fromEntries(Object.entries(own).filter(([key]) => !(key in page)));
  const close = element('button', { className: 'btn sm', text: say('Close') });
  const content = [element('div', { className: 'keyhead' }, element('h2', { text: say('Keys') }), close)];
  if (!keysOn()) {
    const off = element('p', { className: 'muted', text: `${say('Single keys are switched off in this browser.')} ` });
    const link = element('a', { text: say('Settings') });
    link.href = '/settings#display';
    off.append(link);
    content.push(off);
  }
  content.push(...group(say('On this page'), page), ...group(say('Everywhere'), rest));
  const dialog = openDialog(content, { label: say('Keys'), className: 'keyhelp' });
  close.addEventListener('click', () => dialog.close());
  close.focus();
}

function group(title, keys) {
  const lines = new Map();
  for (const [key, action] of Object.entries(keys)) {
    if (action.text) lines.set(action.text, [...(lines.get(action.text) ?? []), key]);
  }
  if (!lines.size) return [];
  const list = element('dl', { className: 'keylist' });
  const words = WORDS();
  for (const [text, found] of lines) {
    const names = found.flatMap((key, at) => [...(at ? [' '] : []), ...spelled(key, words)]);
    list.append(element('dt', {}, ...names), element('dd', { text }));
  }
  return [element('h3', { text: title }), list];
}

function spelled(key, words) {
  if (key.length === 1 || !key.includes(' ')) return [element('kbd', { text: words[key] ?? key })];
  return key.split(' ').flatMap((part, at) => [...(at ? ['\u202f'] : []), element('kbd', { text: part })]);
}
