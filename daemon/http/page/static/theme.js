// Before the first paint: that there are scripts, and the appearance that was chosen here before. Not
// a module, because modules run after the page is parsed, and a dark page would flash white.
document.documentElement.dataset.script = "";
try {
  const chosen = localStorage.getItem("forebay.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is switched off: the system's preference holds.
}
