// What the parts share: elements, texts that hide nothing, numbers with units, drawings that are walked with arrow keys.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

const there = (children) => children.flat(5).filter((child) => child !== null && child !== undefined && child !== false);
function put(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...there(children));
  return element;
}
const h = (name, attributes = {}, ...children) => put(document.createElement(name), attributes, children);
const g = (name, attributes = {}, ...children) => put(document.createElementNS(SVG, name), attributes, children);
const links = {}; // what a part offers to others
const byId = (id) => document.getElementById(id);
const say = (element, ...children) => element.replaceChildren(...there(children));
const add = (id, ...children) => byId(id).append(...there(children));

// -- texts ------------------------------------------------------------------------------------------
// Controls, signs that turn the direction of writing, and all that has no glyph are shown by number.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]/u;
const SIGNS = { " ": "·", "\n": "↵", "\t": "⇥", "\r": "␍" };
const numbered = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

function sign(character) {
  if (character in SIGNS) return SIGNS[character];
  return HIDDEN.test(character) ? `⟨${numbered(character)}⟩` : null;
}

// A text as nodes, isolated from the direction of what stands around it; marks are quiet.
function glyphs(text, space = "·") {
  const nodes = [];
  let run = "";
  for (const character of text) {
    const mark = character === " " ? space : sign(character);
    if (mark === null) { run += character; continue; }
    if (run) nodes.push(run);
    run = "";
    nodes.push(h("i", { class: "mark" }, mark));
  }
  if (run) nodes.push(run);
  return h("bdi", {}, nodes);
}

// The same as a string, for labels that have room for so many characters.
function plain(text, most = Infinity) {
  const shown = [...text].map((character) => sign(character) ?? character);
  return `\u2068${shown.length > most ? [...shown.slice(0, most - 1), "…"].join("") : shown.join("")}\u2069`;
}

const NAMES = DATA.spellings;
const textOf = (id) => NAMES[id]?.text ?? `#${id}`;
const label = (id, most) => plain(textOf(id), most);
const special = new Set(DATA.prompt.special);
const tokens = [...DATA.prompt.tokens.map((token) => token.id), ...DATA.answer.map((row) => row.id)];
const promptLength = DATA.prompt.tokens.length;

// -- numbers ----------------------------------------------------------------------------------------
const count = (value) => value.toLocaleString("en");
function scaled(value, units, base) {
  let [size, unit] = [value, 0];
  while (size >= base && unit < units.length - 1) { size /= base; unit += 1; }
  return `${unit && size < 100 ? size.toFixed(size < 10 ? 2 : 1) : count(Math.round(size))} ${units[unit]}`;
}
const bytes = (value) => (value === null || value === undefined ? "" : scaled(value, ["B", "KiB", "MiB", "GiB"], 1024));
const many = (value) => (value < 1e4 ? count(value) : scaled(value, ["", "thousand", "million", "billion", "trillion"], 1000));
function seconds(value) {
  if (value === null) return "";
  if (value >= 1) return `${value.toFixed(2)} s`;
  return value >= 1e-3 ? `${(value * 1e3).toFixed(value >= 0.1 ? 0 : value >= 0.01 ? 1 : 2)} ms` : `${(value * 1e6).toFixed(0)} µs`;
}
const percent = (share, digits = 2) => (share === null ? "" : `${(share * 100).toFixed(digits)} %`);
function chance(share) {
  if (share === null) return "not a number";
  if (share === 0) return "0";
  return share >= 1e-4 ? percent(share, share >= 0.1 ? 1 : 2) : share.toExponential(1).replace("e-", " · 10⁻").replace(/\d+$/, superscript);
}
const superscript = (digits) => [...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("");
const plural = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;
const shape = (sizes) => (sizes.length ? sizes.join(" × ") : "one number");

// -- pieces of a page -------------------------------------------------------------------------------
function lead(id, ...children) {
  const box = h("p", { class: "lead" }, children);
  byId(id).append(box);
  return box;
}

// A head that begins with # is over numbers, one with ~ over sentences.
function tabulated(heads, rows, foot = null) {
  const kind = (i) => ({ "#": "n", "~": "long" })[heads[i][0]] ?? null;
  const names = heads.map((head) => head.replace(/^[#~]/, ""));
  const cell = (value, i) => (i === 0 ? h("th", { scope: "row" }, value) : h("td", { class: kind(i) }, value));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": names.join(", ") },
    h("table", {},
      h("thead", {}, h("tr", {}, names.map((name, i) => h("th", { scope: "col", class: kind(i) }, name)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell)))),
      foot && h("tfoot", {}, h("tr", {}, foot.map(cell)))));
}
const folded = (summary, ...children) => h("details", {}, h("summary", {}, summary), children);

// Buttons of which one is pressed.
function choice(names, pressed, chosen) {
  const buttons = names.map(([value, name]) => h("button", {
    type: "button", "aria-pressed": String(value === pressed),
    onclick: () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(names[i][0] === value)));
      chosen(value);
    },
  }, name));
  return h("span", { class: "choice", role: "group" }, buttons);
}

// A slider with buttons beside it; `set` moves it and tells.
function slider(name, most, start, chosen) {
  const input = h("input", { type: "range", min: 0, max: most, value: start, "aria-label": name });
  const box = h("span", { class: "controls" },
    h("button", { type: "button", "aria-label": `${name}: one back`, onclick: () => set(Number(input.value) - 1) }, "‹"),
    input,
    h("button", { type: "button", "aria-label": `${name}: one on`, onclick: () => set(Number(input.value) + 1) }, "›"));
  function set(value) {
    input.value = Math.max(0, Math.min(most, value));
    chosen(Number(input.value));
  }
  input.addEventListener("input", () => set(Number(input.value)));
  return { box, set, get: () => Number(input.value) };
}

function numberInput(name, most, start, chosen) {
  const input = h("input", { type: "number", min: 0, max: most, value: start });
  input.addEventListener("change", () => set(Number(input.value)));
  function set(value) {
    input.value = Math.max(0, Math.min(most, Math.round(value) || 0));
    chosen(Number(input.value));
  }
  return { box: h("label", {}, name, input), show: (value) => { input.value = value; } };
}

// Draws again when the place for it changes its width.
function fitted(draw, attributes = {}) {
  const box = h("div", attributes);
  let width = 0;
  const again = () => { if (width) say(box, draw(width)); };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) requestAnimationFrame(() => { width = now; again(); });
  }).observe(box);
  return { box, again };
}

// A drawing whose cells are pointed at: by mouse, by touch, by arrow keys. Enter or a click chooses.
function pointed(svg, columns, rows, at, point, choose = null) {
  let [x, y] = [0, 0];
  const move = (toX, toY) => {
    x = Math.max(0, Math.min(columns - 1, toX));
    y = Math.max(0, Math.min(rows - 1, toY));
    point(x, y);
  };
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("role", "application");
  svg.addEventListener("pointermove", (event) => { const cell = at(event); if (cell) move(...cell); });
  svg.addEventListener("click", (event) => { const cell = at(event); if (cell) { move(...cell); choose?.(x, y); } });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (by) { event.preventDefault(); move(x + by[0], y + by[1]); choose?.(x, y); }
  });
  return (toX, toY) => { [x, y] = [toX, toY]; };
}

// Cells of one shade are one path: a map of thousands is a few elements. Shades follow the theme.
const SHADES = 12;
const shade = (share) => (share <= 0 ? 0 : Math.max(1, Math.min(SHADES, Math.ceil(Math.sqrt(share) * SHADES))));
const tint = (step) => `color-mix(in oklab, var(--heat) ${Math.round(step / SHADES * 100)}%, var(--cell))`;
function cells(list, size, gap) {
  const paths = Array.from({ length: SHADES + 1 }, () => []);
  for (const [x, y, share] of list) paths[shade(share)].push(`M${x * size} ${y * size}h${size - gap}v${size - gap}h${gap - size}z`);
  return paths.map((parts, step) => (parts.length ? g("path", { d: parts.join(""), style: `fill:${tint(step)}` }) : null));
}
function shades(low, high) {
  return h("span", { class: "legend" }, low,
    Array.from({ length: 7 }, (_, i) => h("i", { style: `background:${tint(i * 2)}` })), high);
}
