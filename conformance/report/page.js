"use strict";
// Draws what the page's data holds beside the maps: positions by heads of a chosen operation, tokens, the cache.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = [["own", "Own error"], ["whole", "Propagated error"]];
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "rect"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function stepOf(share) {
  const step = DATA.steps.findIndex((end) => share <= end);
  return step < 0 ? DATA.steps.length : step;
}

function figures(share) {
  if (share === null || share === undefined) return "not measured";
  return share < 100 ? share.toFixed(2) : share.toExponential(0).replace("+", "");
}

function column(trial, n) {
  const first = n * trial.width;
  const last = Math.min(first + trial.width, trial.positions) - 1;
  return first === last ? `position ${first}` : `positions ${first} to ${last}, the largest`;
}

// A grid of shares, rows by positions; pointer or arrow keys read single squares out.
function strip(trial, rows, names, labels) {
  const wide = Math.max(...rows.map((row) => row.length));
  const height = rows.length > 24 ? 8 : 16;
  const paths = Array.from({ length: DATA.steps.length + 1 }, () => "");
  rows.forEach((row, y) => row.forEach((share, x) => {
    if (share !== null) paths[stepOf(share)] += `M${x} ${y}h1v1h-1z`;
  }));
  const svg = make("svg", {
    viewBox: `0 0 ${wide} ${rows.length}`, preserveAspectRatio: "none", height: height * rows.length,
    tabindex: "0", role: "application", "shape-rendering": "crispEdges",
    "aria-label": "shares by position; arrow keys read them out",
  });
  paths.forEach((d, step) => { if (d) svg.append(make("path", { class: `s${step}`, d })); });
  const cursor = make("rect", { class: "cursor", width: 1, height: 1, visibility: "hidden" });
  svg.append(cursor);
  const said = make("output");
  let [x, y] = [0, 0];
  function point(toX, toY) {
    x = Math.max(0, Math.min(wide - 1, toX));
    y = Math.max(0, Math.min(rows.length - 1, toY));
    cursor.setAttribute("x", x);
    cursor.setAttribute("y", y);
    cursor.setAttribute("visibility", "visible");
    said.textContent = `${[names[y], column(trial, x)].filter(Boolean).join(", ")}: ${figures(rows[y][x])}`;
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    point(Math.floor((event.clientX - box.left) / box.width * wide),
      Math.floor((event.clientY - box.top) / box.height * rows.length));
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    point(x + by[0], y + by[1]);
  });
  const box = make("div", { class: "strip", style: `--row:${height}px` });
  let last = -Infinity; // row of the label before: where rows are low, some have none
  const fitting = labels.map((label, row) => (label && (row - last) * height >= 14 ? (last = row, label) : ""));
  const beside = make("div", { class: "labels" }, ...fitting.map((label) => make("span", {}, label)));
  const merged = trial.width > 1 ? `a column: the largest of ${trial.width} positions` : "";
  const axis = make("div", { class: "axis" }, make("span", {}, "position 0"), make("span", {}, merged),
    make("span", {}, String(trial.positions - 1)));
  box.append(beside, svg, axis, said);
  return box;
}

function worstRow(rows) {
  const wide = Math.max(...rows.map((row) => row.length));
  return Array.from({ length: wide }, (_, x) => rows.reduce((most, row) => {
    const share = row[x] ?? null;
    return share !== null && (most === null || share > most) ? share : most;
  }, null));
}

function captioned(caption, body) {
  return make("figure", {}, make("figcaption", {}, caption), body);
}

// What is known of one operation: what was found, and its shares by head and position.
function show(section, trial, number) {
  const probe = trial.probes[number];
  const panel = section.querySelector(".panel");
  panel.hidden = false;
  const pair = make("div", { class: "pair" });
  for (const [run, title] of RUNS) {
    const standing = probe[run];
    if (!standing) continue;
    const caption = `${title}: ${standing.problem ?? `${standing.worst} of its allowance at most`}`;
    const heads = standing.shares ?? [];
    const names = heads.map((_, head) => (heads.length > 1 ? `head ${head}` : ""));
    pair.append(captioned(caption, heads.length ? strip(trial, heads, names, names) : ""));
  }
  const facts = make("ul", { class: "facts" }, ...probe.said.map((line) => make("li", {}, line)));
  panel.replaceChildren(make("h3", {}, probe.name), facts, pair);
  for (const button of section.querySelectorAll("button[data-probe]")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.probe) === number));
  }
}

// Layers by positions: at which token a run goes wrong, and in which layer.
function tokenRows(trial, run) {
  const groups = new Map();
  for (const probe of trial.probes) {
    if (!probe[run]?.shares || probe.operation.startsWith("cache.")) continue;
    const name = probe.layer === null ? probe.name : `layer ${probe.layer}`;
    groups.set(name, [...(groups.get(name) ?? []), ...probe[run].shares]);
  }
  return [...groups].map(([name, rows]) => [name, worstRow(rows)]);
}

// Layers and heads by positions, for keys or values.
function cacheRows(trial, run, operation) {
  return trial.probes
    .filter((probe) => probe.operation === operation && probe[run]?.shares)
    .flatMap((probe) => probe[run].shares.map(
      (row, head) => [`layer ${probe.layer}, head ${head}`, row, head === 0 ? `layer ${probe.layer}` : ""]));
}

function view(title, explained, trial, rowsOf) {
  const pair = make("div", { class: "pair" });
  for (const [run, name] of RUNS) {
    const rows = rowsOf(run);
    if (!rows.length) continue;
    const drawn = strip(trial, rows.map((row) => row[1]), rows.map((row) => row[0]),
      rows.map((row) => row[2] ?? row[0]));
    pair.append(captioned(name, drawn));
  }
  return pair.childElementCount ? [make("h3", {}, title), make("p", { class: "quiet" }, explained), pair] : [];
}

function fill(section, trial) {
  if (section.dataset.filled) return;
  section.dataset.filled = "yes";
  section.querySelector(".views").append(
    ...view("Token by token", "Each layer’s worst operation at each position.", trial,
      (run) => tokenRows(trial, run)),
    ...["k", "v"].flatMap((what) => view(`Cache: ${what === "k" ? "keys" : "values"}`,
      "Contents of the cache after every step, by layer, head and position.", trial,
      (run) => cacheRows(trial, run, `cache.${what}`))));
  if (trial.chosen === null) return;
  show(section, trial, trial.chosen);
  for (const table of section.querySelectorAll(".heat")) {
    const chosen = table.querySelector(`button[data-probe="${trial.chosen}"]`) ?? table.querySelector("button");
    chosen?.setAttribute("tabindex", "0");
  }
}

// Arrow keys walk over a map; one square of it is in the tab order.
function walk(table, from, key) {
  const cells = [...table.querySelectorAll("button")];
  const at = (button) => {
    const box = button.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const [x, y] = at(from);
  const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  const distance = (button) => {
    const [toX, toY] = at(button);
    const along = (toX - x) * dx + (toY - y) * dy;
    const across = Math.abs((toX - x) * dy) + Math.abs((toY - y) * dx);
    return along > 1 ? along + (dx ? 1000 : 1) * across : Infinity;
  };
  const next = cells.reduce((best, button) => (distance(button) < distance(best) ? button : best));
  if (distance(next) === Infinity) return;
  from.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}

for (const section of document.querySelectorAll("details.trial")) {
  const trial = DATA.trials[Number(section.dataset.trial)];
  if (section.open) fill(section, trial);
  section.addEventListener("toggle", () => { if (section.open) fill(section, trial); });
  section.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-probe]");
    if (!button) return;
    show(section, trial, Number(button.dataset.probe));
    section.querySelector(".panel").scrollIntoView({ block: "nearest" });
  });
  section.addEventListener("keydown", (event) => {
    const table = event.target.closest(".heat");
    if (!table || !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    walk(table, event.target, event.key);
  });
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.matches("details")) target.open = true;
}
window.addEventListener("hashchange", openTarget);
openTarget();
