"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  // "@blue" and "@blue/0.3" are the page's colours: they follow light and dark.
  const paint = (value, style) => {
    if (Array.isArray(value)) return value.map((each) => paint(each, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, paint(each, style)]));
    }
    const found = typeof value === "string" && /^@([a-z]+)(?:\/([\d.]+))?$/.exec(value);
    if (!found) return value;
    const colour = style.getPropertyValue(`--${found[1]}`).trim();
    if (!found[2]) return colour;
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return `rgba(${red},${green},${blue},${found[2]})`;
  };

  const axis = (own) => ({
    gridcolor: "@grid", linecolor: "@line", zerolinecolor: "@line", tickcolor: "@line", tickfont: { color: "@soft", size: 11.5 },
    automargin: true, ...own, title: { font: { color: "@soft", size: 12 }, standoff: 10, ...((own || {}).title || {}) },
  });

  const layoutOf = (own) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, sans-serif", size: 12.5, color: "@ink" },
    margin: { l: 8, r: 12, t: 10, b: 8 }, separators: ".,",
    hoverlabel: { bgcolor: "@card", bordercolor: "@line", font: { color: "@ink", size: 12.5 }, namelength: -1, align: "left" },

    ...own, showlegend: false, xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
  });

  const PAPER_PX = 1000;
  const draw = (size = { autosize: true }) => {
    const style = getComputedStyle(document.documentElement);
    figures.forEach((figure, number) => {
      const options = { responsive: true, displayModeBar: false, doubleClick: "reset" };
      const isEmpty = figure.data.every((trace) => !trace.x.length);
      const nothing = { annotations: [{ text: "Nothing to show yet", showarrow: false, font: { color: "@faint", size: 14 } }],
        xaxis: { visible: false }, yaxis: { visible: false } };
      Plotly.react(`plot-${number}`, paint(figure.data, style), paint(layoutOf(isEmpty ? { ...size, ...nothing } : { ...size, ...figure.layout }), style), options);
    });
  };
  // A plot's legend is text of the page: it wraps, and a click hides or shows a series.
  const legend = (figure, number) => {
    const place = document.getElementById(`legend-${number}`);
    if (!place) return;
    figure.data.forEach((trace, index) => {
      const button = document.createElement("button");
      const mark = document.createElement("i");
      const own = trace.line || trace.marker;
      mark.style.background = `var(--${own.color.slice(1)})`;
      button.append(mark, trace.name.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&"));
      button.addEventListener("click", () => {
        const hidden = button.classList.toggle("hidden");
        trace.visible = hidden ? false : true;
        Plotly.restyle(`plot-${number}`, { visible: trace.visible }, [index]);
      });
      place.append(button);
    });
  };

  if (figures.length) {
    draw();
    figures.forEach(legend);
    dark.addEventListener("change", () => draw());
    window.addEventListener("beforeprint", () => draw({ width: PAPER_PX }));
    window.addEventListener("afterprint", () => draw());
  }

  // A click on a column's head sorts by it: as numbers where both cells are numbers.
  const content = (row, column) => row.cells[column].textContent.trim();
  const compare = (one, other) => {
    const [a, b] = [one, other].map((text) => Number(text.replace(/[, %]/g, "") || "x"));
    return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other, "en", { numeric: true }) : a - b;
  };
  const sort = (head) => {
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") === "descending";
    const rows = [...body.rows].sort((a, b) => compare(content(a, head.cellIndex), content(b, head.cellIndex)) * (up ? 1 : -1));
    for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  };
  for (const head of document.querySelectorAll("th")) {
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
  }
})();
