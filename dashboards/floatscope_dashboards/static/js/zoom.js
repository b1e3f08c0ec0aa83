// Zooming a chart over steps by the pointer: the steps chosen once the hand rests, all of them after a double click.
// While the pointer is down on the chart it must not be drawn anew, since Plotly would lose the drag.
const SETTLE_MS = 150;

/**
 * @param {HTMLElement} place a drawn Plotly chart @param {(steps: [number, number]|null) => void} zoom null: all steps
 * @param {() => void} [released] the pointer went up or was taken away: what was not drawn meanwhile can be
 * @returns {{isHeld: () => boolean, drop: () => boolean}} `isHeld`: whether the pointer is down on the chart; `drop` forgets
 *   a zoom that has not settled and says whether there was one
 */
export function zoomable(place, zoom, released = () => {}) {
  let settle = 0;
  let held = false;
  place.on('plotly_relayout', (change) => {
    const [from, to] = [change['xaxis.range[0]'], change['xaxis.range[1]']];
    if (from == null || to == null) return;
    clearTimeout(settle);
    settle = setTimeout(() => {
      settle = 0;
      zoom([Number(from), Number(to)]);
    }, SETTLE_MS);
  });
  place.on('plotly_doubleclick', () => zoom(null));
  place.addEventListener('pointerdown', () => {
    held = true;
  });
  for (const end of ['pointerup', 'pointercancel']) { // a touch that becomes a scroll is taken away
    addEventListener(end, () => {
      if (!held) return;
      held = false;
      setTimeout(released); // after Plotly has heard of it
    });
  }
  return {
    isHeld: () => held,
    drop() {
      const waited = settle !== 0;
      clearTimeout(settle);
      settle = 0;
      return waited;
    },
  };
}
