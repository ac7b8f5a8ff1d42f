// Sorts a table by a column; without it the tables stand as they are.
document.querySelectorAll("table[data-sort]").forEach((table) => {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const number = head.classList.contains("n");
      const key = (row) => {
        const text = row.cells[column].textContent;
        return number ? parseFloat(text.replace(/,/g, "")) || 0 : text;
      };
      const order = (a, b) => (number ? key(a) - key(b) : key(a).localeCompare(key(b)));
      const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -order(a, b) : order(a, b)));
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      table.tBodies[0].append(...rows);
    });
  });
});
