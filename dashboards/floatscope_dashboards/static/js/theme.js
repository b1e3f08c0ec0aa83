// Runs before the first paint: says that scripts work, and applies a theme the reader chose (address, then memory).
// Without a choice the stylesheet follows the system.
(() => {
  const root = document.documentElement;
  root.classList.add('js');
  let chosen = new URLSearchParams(location.search).get('theme');
  if (!chosen) {
    try {
      chosen = localStorage.getItem('floatscope-theme');
    } catch {
      chosen = null; // storage may be forbidden; the system's theme is then the answer
    }
  }
  if (chosen === 'light' || chosen === 'dark') root.dataset.theme = chosen;
})();
