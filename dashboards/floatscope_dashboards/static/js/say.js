// What scripts say, in the page's language. The English text is the key; the page holds the translations.
const place = document.getElementById('messages');
const messages = place ? JSON.parse(place.textContent) : {};

/** The language tag of the page, for dates and numbers. */
export const language = document.documentElement.lang || 'en';

const filled = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));

/** The text with {name} filled in. @param {string} text @param {Record<string, unknown>} [values] */
export function say(text, values = {}) {
  const found = messages[text];
  return filled(typeof found === 'string' ? found : text, values);
}

/** `one` or `many`; {n} is the number. Translated texts have a single form: Chinese needs no other. */
export function plural(one, many, n, values = {}) {
  const found = messages[one];
  const text = found == null ? (n === 1 ? one : many) : Array.isArray(found) ? found.at(-1) : found;
  return filled(text, { n: n.toLocaleString('en-US'), ...values });
}
