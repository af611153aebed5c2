/* Loaded before the first paint, so that a page with a chosen theme does not flash in the other. */
try {
  const { theme } = JSON.parse(localStorage.getItem("mambo-settings") ?? "{}");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  /* The system's theme holds. */
}
