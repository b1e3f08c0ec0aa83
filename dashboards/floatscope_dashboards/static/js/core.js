// Small things every page needs: finding elements, numbers in words, theme, copying, address state, keys.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

export const NO_VALUE = '\u2013';
export const NARROW_SPACE = '\u202f';

/** A step with thousands separators. @param {number|null} step */
export const stepText = (step) => (step == null ? NO_VALUE : Math.round(step).toLocaleString('en-US'));

/** About four significant digits; NaN, Inf, missing and 0 stay four different texts. @param {number|null} value */
export function numberText(value) {
  if (value == null) return NO_VALUE;
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? 'Inf' : '-Inf';
  const size = Math.abs(value);
  if (size > 0 && size < 1e-3 && size >= 1e-4) return String(Number(value.toPrecision(3)));
  if (size >= 1e9 || (size > 0 && size < 1e-4)) {
    const [digits, exponent] = value.toExponential(2).split('e');
    const power = Math.abs(Number(exponent));
    return `${Number(digits)}e${exponent[0]}${String(power).padStart(2, '0')}`;
  }
  if (Number.isInteger(value) || size >= 1000) return Math.round(value).toLocaleString('en-US');
  return String(Number(value.toPrecision(4)));
}

/** A duration in at most two units, as the server writes it. @param {number} seconds */
export function durationText(seconds) {
  const total = Math.max(0, Math.floor(seconds));
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min`;
  const [big, small, size, part, per] =
    total < 86400 ? ['h', 'min', 3600, 60, 60] : ['d', 'h', 86400, 3600, 24];
  const rest = Math.floor(total / part) % per;
  return `${Math.floor(total / size)} ${big}${rest ? ` ${rest} ${small}` : ''}`;
}

/** A wire number: finite numbers, and the strings for the three others. @returns {number|null} */
export function wireNumber(value) {
  if (typeof value === 'number') return value;
  if (value === 'NaN') return NaN;
  if (value === 'Infinity') return Infinity;
  return value === '-Infinity' ? -Infinity : null;
}

/** Text for Plotly, whose labels understand some HTML: a name must stay a name. */
export function plotlyText(text, most = 60) {
  const half = Math.floor(most / 2);
  const short = text.length <= most ? text : `${text.slice(0, half - 1)}...${text.slice(-half + 2)}`;
  return short.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}

/** An element with text, never with markup. */
export function element(tag, { className = '', text = '' } = {}, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

/** Says something to screen readers, once. */
export function announce(text) {
  const place = $('#announce');
  if (place && place.textContent !== text) place.textContent = text;
}

// ---- theme
const systemDark = matchMedia('(prefers-color-scheme: dark)');

/** @returns {'light'|'dark'} what is shown now */
export const theme = () => document.documentElement.dataset.theme ?? (systemDark.matches ? 'dark' : 'light');

/** Wires the theme button, and calls `redraw` whenever the theme changes, also by the system. */
export function wireTheme(redraw = () => {}) {
  const button = $('#theme');
  const label = () => button?.setAttribute('aria-label', `Switch to ${theme() === 'dark' ? 'light' : 'dark'} theme`);
  label();
  systemDark.addEventListener('change', () => {
    label();
    redraw();
  });
  button?.addEventListener('click', () => {
    const next = theme() === 'dark' ? 'light' : 'dark';
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem('floatscope-theme', next);
    } catch {
      announce('The theme cannot be remembered here.');
    }
    if (new URLSearchParams(location.search).has('theme')) setAddress({ theme: next });
    label();
    redraw();
  });
}

// ---- address
/** Puts view state into the address without a new history entry; null removes a key. */
export function setAddress(changes) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) {
    if (value == null || value === '') query.delete(key);
    else query.set(key, String(value));
  }
  const text = query.toString();
  history.replaceState(null, '', location.pathname + (text ? `?${text}` : ''));
}

// ---- copying
async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Plain http on another machine has no clipboard interface: select the text in a field and copy that.
  const field = document.createElement('textarea');
  field.value = text;
  field.setAttribute('readonly', '');
  field.className = 'sr';
  document.body.append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  if (!done) throw new Error('copying is not allowed here');
}

/** Buttons with data-copy="#id" copy that element's text. One listener: the buttons come and go. */
export function wireCopy() {
  document.addEventListener('click', async (event) => {
    const button = event.target.closest?.('[data-copy]');
    const source = button && $(button.dataset.copy);
    if (!source) return;
    const before = button.dataset.label ?? button.textContent;
    button.dataset.label = before;
    try {
      await copyText(source.textContent);
      button.textContent = 'Copied';
      announce('Copied.');
    } catch {
      button.textContent = 'Select and copy it';
      getSelection().selectAllChildren(source);
    }
    setTimeout(() => {
      button.textContent = before;
    }, 1600);
  });
}

// ---- keys
/** Single keys, off while typing or with a modifier. @param {Record<string, (event: KeyboardEvent) => void>} actions */
export function wireKeys(actions) {
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches?.('input:not([type=range]):not([type=checkbox]), textarea, select');
    if (typing && event.key !== 'Escape') return;
    const action = actions[event.key];
    if (action) action(event);
  });
}
