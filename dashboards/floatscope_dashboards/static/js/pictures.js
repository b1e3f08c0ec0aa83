// The pictures of the run page that show tensors and ranks over time: heat map, range ruler, ranks. A picture is loaded
// only while it is near the visible part of the page; one that comes into view later is loaded then.
//
//   const pictures = startPictures(current, steps, zoom); // the page's data; the steps shown, or null; shows other steps
//   pictures.load();        // new data: draws what is in view      pictures.redraw(); // the theme changed
//   pictures.scrubTo(step); pictures.move(columns); pictures.refreshed(); // the server's HTML was read again
import { $ } from './core.js';
import { heatView } from './heat_view.js';
import { ranksView } from './ranks_view.js';
import { rulerView } from './ruler_view.js';

const NEAR_PX = 800;

/** @param {() => object} current @param {() => [number, number]|null} steps @param {Function} zoom shows steps, or all */
export function startPictures(current, steps, zoom) {
  const ruler = rulerView(current);
  const heat = heatView(current, steps, (at, pinned) => ruler.show(at, pinned), zoom);
  const ranks = ranksView(current, steps);
  const inView = [lazily($('#layers'), heat.load), lazily($('#ranks'), ranks.load)];
  return {
    load: () => Promise.all(inView.map((load) => load())),
    redraw() {
      heat.redraw();
      ranks.redraw();
    },
    scrubTo: heat.scrubTo,
    move: heat.move,
    refreshed: heat.refreshed,
  };
}

/** `load`, but only while the place is near the visible part; asked for before, it runs when the place comes near. */
function lazily(place, load) {
  if (!place) return () => undefined;
  // Looked up at once, so that what is in view is asked for beside the loss and not after it is drawn.
  const { top } = place.getBoundingClientRect();
  let near = !place.hidden && top < innerHeight + NEAR_PX;
  let wanted = false;
  new IntersectionObserver(
    ([entry]) => {
      near = entry.isIntersecting;
      if (near && wanted) go();
    },
    { rootMargin: `${NEAR_PX}px` },
  ).observe(place);
  function go() {
    wanted = false;
    return load();
  }
  return () => {
    wanted = true;
    return near ? go() : undefined;
  };
}
