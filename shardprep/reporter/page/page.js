"use strict";
// Convenience only: the page is complete without this script.
for (const pre of document.querySelectorAll("pre")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(pre.querySelector("code").textContent);
    button.textContent = "Copied";
  });
  pre.append(button);
}
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => {
        const text = row.cells[column].textContent.replaceAll(",", "");
        return text !== "" && !isNaN(text) ? Number(text) : text;
      };
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a), y = value(b);
        const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
