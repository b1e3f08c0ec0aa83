// What this browser remembers for the reader: theme, times, single keys. Storage may be forbidden; the product's own
// choice is the answer then.
const KEY = (name) => `floatscope-${name}`;

/** @param {'theme'|'times'|'keys'} name @returns {string|null} */
export function chosen(name) {
  try {
    return localStorage.getItem(KEY(name));
  } catch {
    return null; // forbidden, as said above
  }
}

/** Remembers a choice; null forgets it. @returns {boolean} whether it could be remembered */
export function choose(name, value) {
  try {
    if (value == null) localStorage.removeItem(KEY(name));
    else localStorage.setItem(KEY(name), value);
    return true;
  } catch {
    return false; // the caller says so
  }
}
