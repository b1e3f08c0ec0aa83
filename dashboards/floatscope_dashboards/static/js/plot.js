// Drawing with Plotly: waits for its script, puts the theme's colours in, draws with one shared configuration.
import { theme } from './core.js';
import { say } from './say.js';

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

let turn = Promise.resolve();

/** Draws or redraws `figure` in `place`. One path for first draw, tick, zoom and theme: Plotly.react. Charts that were
 * ready at once are drawn one after the other, so that the page answers the reader between them. */
export async function draw(place, figure, { tokens, config }) {
  const library = await plotly();
  turn = turn.then(() => new Promise((done) => setTimeout(done)));
  await turn;
  const { data, layout } = resolve(figure, tokens[theme()]);
  if (!place.classList.contains('js-plotly-plot')) place.replaceChildren();
  await library.react(place, data, layout, config);
}

/** What stands in the chart is of now: call it after a reading that went well, beside `fail`. */
export function renewed(place) {
  place.classList.remove('old');
  if (place.previousElementSibling?.matches('.chart-old')) place.previousElementSibling.remove();
}

/** Says in a chart's place why there is no chart. Where one stands it is of what was read before: it grows pale, and a
 * line above says so and offers to read again. @param {() => void} again */
export function fail(place, text, again) {
  const note = document.createElement('p');
  note.className = 'note';
  note.textContent = text;
  if (!place.classList.contains('js-plotly-plot')) {
    place.replaceChildren(note);
    return;
  }
  const retry = document.createElement('button');
  retry.type = 'button';
  retry.className = 'btn sm';
  retry.textContent = say('Read again');
  retry.addEventListener('click', () => again());
  note.className = 'note warn chart-old';
  note.setAttribute('role', 'status');
  note.append(` ${say('The chart shows what was read before.')} `, retry);
  renewed(place);
  place.before(note);
  place.classList.add('old');
}
