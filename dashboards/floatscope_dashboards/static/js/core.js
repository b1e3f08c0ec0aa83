// Small things every page needs: finding elements, numbers in words, theme, copying, address state, keys.
import { choose, chosen } from './choices.js';
import { say } from './say.js';

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
  return (value < 0 ? '\u2212' : '') + sizeText(Math.abs(value));
}

function sizeText(size) {
  if (size > 0 && size < 1e-3 && size >= 1e-4) return String(Number(size.toPrecision(3)));
  if (size >= 1e9 || (size > 0 && size < 1e-4)) {
    const [digits, exponent] = size.toExponential(2).split('e');
    const power = Math.abs(Number(exponent));
    return `${Number(digits)}e${exponent[0]}${String(power).padStart(2, '0')}`;
  }
  if (Number.isInteger(size) || size >= 1000) return Math.round(size).toLocaleString('en-US');
  return String(Number(size.toPrecision(4)));
}

/** A duration in at most two units, as the server writes it. @param {number} seconds */
export function durationText(seconds) {
  const total = Math.max(0, Math.floor(seconds));
  if (total < 60) return say('{s} s', { s: total });
  if (total < 3600) return say('{min} min', { min: Math.floor(total / 60) });
  const hours = Math.floor(total / 3600);
  if (total < 86400) {
    const min = Math.floor(total / 60) % 60;
    return min ? say('{h} h {min} min', { h: hours, min }) : say('{h} h', { h: hours });
  }
  const d = Math.floor(total / 86400);
  return hours % 24 ? say('{d} d {h} h', { d, h: hours % 24 }) : say('{d} d', { d });
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

/** Shows a theme and remembers it; null follows the system. Whoever draws charts hears `themechange`. */
export function setTheme(next) {
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  if (!choose('theme', next)) announce(say('The theme cannot be remembered here.'));
  if (new URLSearchParams(location.search).has('theme')) setAddress({ theme: next });
  document.dispatchEvent(new Event('themechange'));
}

export const toggleTheme = () => setTheme(theme() === 'dark' ? 'light' : 'dark');

/** Wires the theme button, and calls `redraw` whenever the theme changes, also by the system. */
export function wireTheme(redraw = () => {}) {
  const button = $('#theme');
  const name = () => button?.setAttribute('aria-label', theme() === 'dark' ? say('Switch to light theme') : say('Switch to dark theme'));
  const changed = () => {
    name();
    redraw();
  };
  name();
  systemDark.addEventListener('change', changed);
  document.addEventListener('themechange', changed);
  button?.addEventListener('click', toggleTheme);
}

// ---- address
/** Puts view state into the address; null removes a key. @param {{push?: boolean}} [options] push: as a new entry of the
 *  browser's history, for what Back should undo */
export function setAddress(changes, { push = false } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) {
    if (value == null || value === '') query.delete(key);
    else query.set(key, String(value));
  }
  const text = query.toString();
  const address = location.pathname + (text ? `?${text}` : '') + location.hash;
  const isOther = address !== location.pathname + location.search + location.hash;
  history[push && isOther ? 'pushState' : 'replaceState'](history.state, '', address);
}

/** Leaves for another page of this server. */
export const goTo = (path) => location.assign(path);

// ---- copying
/** Puts a text on the clipboard; rejects where the browser does not allow it. */
export const copyText = async (text) => (await import('./copy.js')).copyText(text);

/** Buttons with data-copy="#id" copy that element's text. */
export function wireCopy() {
  document.addEventListener('click', async (event) => {
    const button = event.target.closest?.('[data-copy]');
    const source = button && $(button.dataset.copy);
    if (source) (await import('./copy.js')).copyOf(button, source);
  });
}

// ---- keys
const PAIR_MS = 1500;
const TYPING = 'input:not([type=range]):not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]';

/** Whether single keys are on: letters and signs can be switched off in the settings (WCAG 2.1.4). */
export const keysOn = () => chosen('keys') !== 'off';

/**
 * Single keys, and pairs such as 'g r'; off while typing or with a modifier.
 * @param {Record<string, import('./shell.js').Key>} actions
 */
export function wireKeys(actions) {
  let first = '';
  let timer = 0;
  const firsts = new Set(Object.keys(actions).filter((key) => key.includes(' ')).map((key) => key[0]));
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const typing = event.target.matches?.(TYPING);
    if (typing && event.key !== 'Escape') return;
    if (event.key.length === 1 && !keysOn()) return;
    const action = (first && actions[`${first} ${event.key}`]) || actions[event.key];
    clearTimeout(timer);
    first = !action && firsts.has(event.key) ? event.key : '';
    timer = setTimeout(() => {
      first = '';
    }, PAIR_MS);
    if (action) (action.run ?? action)(event);
  });
}
