// Drawing with Plotly: waits for its script, puts the theme's colours in, draws with one shared configuration.
import { theme } from './core.js';

/** A copy with the theme's colours for the "@token" strings. Only keys that name a colour are looked at: a tensor
 * may be called "@nan". */
export function resolve(value, tokens) {
  if (Array.isArray(value)) {
    return value[0] && typeof value[0] === 'object' && !Array.isArray(value[0]) ? value.map((item) => resolve(item, tokens)) : value;
  }
  if (!value || typeof value !== 'object') return value;
  const made = {};
  for (const [key, item] of Object.entries(value)) {
    const colour = typeof item === 'string' && item.startsWith('@') && /color(scale)?$/.test(key);
    made[key] = colour ? tokens[item.slice(1)] : resolve(item, tokens);
  }
  return made;
}

/** @returns {Promise<object>} Plotly, once its script has run. Rejects when the script cannot be loaded. */
export function plotly() {
  if (window.Plotly) return Promise.resolve(window.Plotly);
  const script = document.getElementById('plotly');
  return new Promise((done, failed) => {
    script.addEventListener('load', () => done(window.Plotly));
    script.addEventListener('error', () => failed(new Error('plotly.js could not be loaded')));
    if (window.Plotly) done(window.Plotly);
  });
}

/** Draws or redraws `figure` in `place`. One path for first draw, tick, zoom and theme: Plotly.react. */
export async function draw(place, figure, { tokens, config }) {
  const library = await plotly();
  const { data, layout } = resolve(figure, tokens[theme()]);
  if (!place.classList.contains('js-plotly-plot')) place.replaceChildren();
  await library.react(place, data, layout, config);
}

/** Says in a chart's place why there is no chart. */
export function fail(place, text) {
  if (place.classList.contains('js-plotly-plot')) return;
  const note = document.createElement('p');
  note.className = 'note';
  note.textContent = text;
  place.replaceChildren(note);
}
