// Zooming by the steps below the heat map: dragging along them shows these steps in all charts of the page, a double
// click there shows the whole run again. Over the cells, dragging moves the scrubber.
import { element } from './core.js';

const LEAST_PX = 6;
const AXIS_PX = 34;

/**
 * @param {Element} place the plot @param {{grid: Function, box: Function}} view what is shown
 * @param {(steps: [number, number]|null) => void} zoom shows these steps, or the whole run
 */
export function heatZoom(place, view, zoom) {
  const band = element('div', { className: 'zoomband' });
  band.hidden = true;
  place.parentElement.append(band);
  let from = null;

  /** The pointer in pixels of the map, kept inside it; null when it is not on the steps and `anywhere` is off. */
  function along(event, anywhere = false) {
    const { left, top, width, height } = view.box();
    const edge = place.getBoundingClientRect();
    const x = event.clientX - edge.left - left;
    const below = event.clientY - edge.top - top - height;
    if (!view.grid()?.edges.length || (!anywhere && (x < 0 || x > width || below <= 0 || below > AXIS_PX))) return null;
    return Math.min(Math.max(x, 0), width);
  }

  function show(x) {
    const { left, top, height } = view.box();
    band.hidden = Math.abs(x - from) < LEAST_PX;
    band.style.left = `${left + Math.min(x, from)}px`;
    band.style.width = `${Math.abs(x - from)}px`;
    band.style.top = `${top}px`;
    band.style.height = `${height}px`;
  }

  const stepAt = (x) => {
    const { edges } = view.grid();
    return edges[0] + ((edges.at(-1) - edges[0]) * x) / view.box().width;
  };

  function stop() {
    from = null;
    band.hidden = true;
  }

  place.addEventListener('pointerdown', (event) => {
    if (!event.button) from = along(event);
  });
  place.addEventListener('pointermove', (event) => place.classList.toggle('on-steps', from != null || along(event) != null));
  // On the window: a drag may leave the plot.
  addEventListener('pointermove', (event) => from != null && show(along(event, true)));
  addEventListener('pointerup', (event) => {
    if (from == null) return;
    const x = along(event, true);
    const steps = [Math.min(x, from), Math.max(x, from)].map(stepAt);
    const dragged = !band.hidden && Math.ceil(steps[1]) - Math.floor(steps[0]) > 1;
    stop();
    if (dragged) zoom(steps);
  });
  addEventListener('pointercancel', stop);
  place.addEventListener('dblclick', (event) => along(event) != null && zoom(null));
}
