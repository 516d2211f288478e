"use strict";
// Convenience only: every page works without this script.
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.target.closest("input, select, textarea, [tabindex]")) return;
  const rel = { ArrowLeft: "prev", ArrowRight: "next", ArrowUp: "up" }[event.key];
  if (event.key === "/") {
    const key = document.querySelector("input[name=key]");
    if (key) {
      event.preventDefault();
      key.focus();
    }
  } else if (rel === "up" ? scrollY === 0 : rel) {
    document.querySelector(`a[rel=${rel}]`)?.click();
  }
});
for (const form of document.querySelectorAll("form.filter")) {
  form.addEventListener("submit", () => {
    for (const one of form.elements) one.disabled = one.name && !one.value;
  });
  for (const one of form.querySelectorAll("select")) {
    one.addEventListener("change", () => form.requestSubmit());
  }
}
