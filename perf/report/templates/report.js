"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  // "@segment" is a colour of the page: it follows light and dark.
  const paint = (value, style) => {
    if (Array.isArray(value)) return value.map((each) => paint(each, style));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, paint(each, style)]));
    return typeof value === "string" && /^@[a-z]+$/.test(value) ? style.getPropertyValue(`--${value.slice(1)}`).trim() : value;
  };

  const axis = (own) => ({
    gridcolor: "@grid", linecolor: "@line", zerolinecolor: "@faint", tickcolor: "@line", tickfont: { color: "@soft", size: 11.5 },
    automargin: true, fixedrange: true, ...own, title: { font: { color: "@soft", size: 12 }, standoff: 8, ...((own || {}).title || {}) },
  });

  const layoutOf = (own, size) => {
    const axes = Object.keys(own).filter((key) => /^[xy]axis\d*$/.test(key));
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, separators: ".,", margin: { l: 4, r: 4, t: 24, b: 8 },
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, sans-serif", size: 12.5, color: "@ink" },
      hoverlabel: { bgcolor: "@card", bordercolor: "@line", font: { color: "@ink", size: 12.5 }, namelength: -1, align: "left" },
      ...own, ...size, ...Object.fromEntries(axes.map((key) => [key, axis(own[key])])),
    };
  };

  const draw = (plot, number, size) => {
    const style = getComputedStyle(document.documentElement);
    const options = { responsive: true, displayModeBar: false };
    Plotly.react(`plot-${number}`, paint(plot.data, style), paint(layoutOf(plot.layout, size), style), options);
  };

  // What is far below is drawn when it comes near, so that the page is there at once; printing needs all of them.
  const waiting = new Map(plots.map((plot, number) => [document.getElementById(`plot-${number}`), number]));
  const drawn = new Set();
  const show = (place, watcher) => {
    const number = waiting.get(place);
    watcher.unobserve(place);
    drawn.add(number);
    draw(plots[number], number, { autosize: true });
  };
  const watcher = new IntersectionObserver((entries) => entries.filter((each) => each.isIntersecting).forEach((each) => show(each.target, watcher)), {
    rootMargin: "1200px",
  });
  for (const place of waiting.keys()) watcher.observe(place);
  dark.addEventListener("change", () => drawn.forEach((number) => draw(plots[number], number, { autosize: true })));

  const PAPER_PX = { narrow: 470, wide: 980 };
  const isWide = (place) => place.closest(".parts") === null || place.closest(".parts").children.length === 1;
  window.addEventListener("beforeprint", () => {
    for (const [place, number] of waiting) draw(plots[number], number, { width: isWide(place) ? PAPER_PX.wide : PAPER_PX.narrow });
  });
  window.addEventListener("afterprint", () => {
    for (const [place, number] of waiting) show(place, watcher);
  });

  // A click on a column's head sorts by it: as numbers where both cells are numbers. Cells without one come last.
  const SCALES = { k: 1e3, M: 1e6, G: 1e9 };
  const content = (row, column) => {
    const cell = row.cells[column];
    return (cell.querySelector("[data-of]") || cell).textContent.trim();
  };
  const numeric = (text) => {
    const found = /^([\d.]+)(?: ([kMG]))?$/.exec(text.replace(/\u202f/g, ""));
    return found ? Number(found[1]) * (SCALES[found[2]] || 1) : NaN;
  };
  const compare = (one, other, up) => {
    const [a, b] = [numeric(one), numeric(other)];
    if (Number.isNaN(a) !== Number.isNaN(b)) return Number.isNaN(a) ? 1 : -1;
    return (Number.isNaN(a) ? one.localeCompare(other, "en", { numeric: true }) : a - b) * (up ? 1 : -1);
  };
  const sort = (head) => {
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") === "descending";
    const rows = [...body.rows].sort((a, b) => compare(content(a, head.cellIndex), content(b, head.cellIndex), up));
    for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  };
  for (const head of document.querySelectorAll(".readings th")) {
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
  }
})();
