"use strict";
/* Renders the report's data. `make` inserts text only as text nodes. */

const report = JSON.parse(document.getElementById("report").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = [];

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null).map((child) =>
    child instanceof Node ? child : document.createTextNode(String(child))));
  return element;
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {
    ink: of("--ink"), soft: of("--soft"), line: of("--line"), card: of("--card"),
    category: dark.matches
      ? ["#7db1ff", "#ffb454", "#5dd08f", "#ff8fb1", "#c3a6ff", "#5fd4d6", "#d8c96a", "#b3b9c1"]
      : ["#1d5fd1", "#d9700a", "#12874a", "#c2255c", "#7048c6", "#0b8591", "#8a7300", "#5c636b"],
    diverging: dark.matches
      ? ["#b8692a", "#2a2e34", "#2f6fbf"] : ["#eb9c4f", "#f4f4f2", "#6aa3e8"],
  };
}

function theme() {
  const c = colours();
  const text = { font: "system-ui, sans-serif", labelFontSize: 12, titleFontSize: 12 };
  return {
    background: null,
    font: text.font,
    view: { stroke: null },
    axis: {
      labelColor: c.soft, titleColor: c.soft, titleFontWeight: "normal", gridColor: c.line,
      domainColor: c.line, tickColor: c.line, labelFontSize: 12, titleFontSize: 12,
    },
    legend: { labelColor: c.ink, titleColor: c.soft, labelFontSize: 12, labelLimit: 160 },
    text: { color: c.ink },
    range: { category: c.category, diverging: c.diverging },
  };
}

async function draw({ place, spec, title }) {
  const { view } = await vegaEmbed(
    place,
    { width: "container", description: title, ...spec },
    {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: theme(),
      tooltip: { theme: dark.matches ? "dark" : "light" }, defaultStyle: false,
    },
  );
  return view;
}

async function drawAll() {
  for (const chart of charts) {
    chart.view?.finalize();
    chart.view = await draw(chart);
    await new Promise((done) => setTimeout(done));  // keeps the page responsive
  }
  document.documentElement.dataset.drawn = charts.length;
}

function figure(chart) {
  const place = make("div", { class: "plot" });
  charts.push({ place, spec: chart.spec, title: chart.title });
  return make("figure", {}, make("h3", {}, chart.title), place,
    chart.caption ? make("figcaption", {}, chart.caption) : null);
}

function table({ title, columns, rows, caption, marked }) {
  return make("div", { class: "card" }, make("h3", {}, title),
    rows.length === 0 ? null : make("div", { class: "scroll", tabindex: rows.length > 3 ? 0 : null, role: "region", "aria-label": title },
      make("table", {},
        make("thead", {}, make("tr", {}, columns.map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, rows.map((row, index) =>
          make("tr", { class: marked?.[index] ? "marked" : null }, row.map((cell) => make("td", { class: cell.length > 36 ? "long" : null }, cell))))))),
    caption ? make("p", { class: "note" }, caption) : null);
}

function headline() {
  const answers = report.runs.map((run) => {
    const reasons = make("ul", { class: "reasons" }, run.reasons.map((reason) => make("li", {}, reason)));
    const facts = make("dl", { class: "facts" }, run.facts.map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    const state = run.state ? make("p", { class: "state" }, run.state) : null;
    if (report.runs.length === 1) return [state, reasons, facts];
    return make("section", { class: "run-answer" },
      make("h3", {}, run.label === run.name ? `${run.name}: ` : `${run.label} (${run.name}): `, make("span", { class: run.kind }, run.answer)), state, reasons, facts);
  });
  return make("header", {}, make("p", { class: "kicker" }, report.kicker),
    make("h1", { class: report.runs.length === 1 ? report.runs[0].kind : null }, report.headline), answers);
}

function section({ id, title, note, charts: figures, tables }) {
  return make("section", { id }, make("h2", {}, title), note ? make("p", { class: "note" }, note) : null,
    figures.length ? make("div", { class: "charts" }, figures.map(figure)) : null, tables.map(table));
}

function again() {
  return make("div", { class: "card" }, make("h3", {}, "Reproduce"),
    report.runs.map((run) => [
      make("pre", { tabindex: 0 }, run.commands.join("\n")),
    ]), make("p", { class: "note" }, report.again));
}

function build() {
  const before = report.sections.filter((each) => each.id !== "settings");
  const settings = report.sections.find((each) => each.id === "settings");
  const parts = [...before.map(section), typeof games === "function" ? games() : null, section(settings)];
  parts.at(-1).append(again());
  const shown = parts.filter((part) => part !== null);
  const nav = make("nav", { "aria-label": "Sections" }, shown.map((part) =>
    make("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)));
  document.getElementById("page").append(headline(), nav, make("main", {}, shown),
    make("footer", {}, report.footer.replace("{library}", Math.round(report.library_bytes / 1000)),
      ` Created ${report.made}.`));
}

build();
drawAll();
dark.addEventListener("change", drawAll);
