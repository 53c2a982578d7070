// Part 3: who looks at whom, in every layer and head.
{
  const { layers, width, rows: read } = DATA.attention;
  const side = layers[0].heads[0].largest.length;
  const heads = Math.max(...layers.map((layer) => layer.heads.length));
  const all = layers.flatMap((layer, l) => layer.heads.map((head, n) => ({ l, n, ...head })));
  const strongest = all.reduce((best, head) => (head.first > best.first ? head : best));
  const mean = all.reduce((n, head) => n + head.first, 0) / all.length;
  const windows = [...new Set(layers.map((layer) => layer.window))];
  lead("attention", `Each of ${plural(layers.length, "layer")} × ${plural(heads, "head")} spreads a weight of 100 % of every token over the tokens that it sees. `,
    read > 1 ? ["Behind the first token, ", h("b", {}, percent(mean, 0)), ` of it go to the first one on average${mean > 0.3 ? ", which serves as a sink" : ""}; most in layer `,
      `${strongest.l}, head ${strongest.n} (${percent(strongest.first, 0)}). `] : "There is a single token, which sees itself. ",
    windows.some((window) => window !== null)
      ? `Windows: ${windows.map((window) => (window === null ? "none" : plural(window, "token"))).join(" and ")}. `
      : "No layer has a window: every token sees all before it. ",
    layers.some((layer) => layer.sinks) ? "Heads have a learned sink, which takes a share and gives nothing." : "");
  if (width > 1) {
    add("attention", h("p", { class: "lead" }, h("b", {}, `${count(read)} rows are more than fit. `),
      `A square stands for ${width} × ${width} weights: the largest of them, or the mean of those that can be seen. Entropies and the figures of a head are of every single row.`));
  }

  const METRICS = {
    entropy: ["entropy", "bits: 0 where one token has it all", (value) => `${value.toFixed(2)} bits`],
    first: ["the first token", "weight on position 0", (value) => percent(value, 1)],
    previous: ["the token before", "weight one position back", (value) => percent(value, 1)],
    self: ["itself", "weight on the token itself", (value) => percent(value, 1)],
    distance: ["distance", "tokens back, on average", (value) => `${value.toFixed(1)} tokens`],
  };
  if (layers.some((layer) => layer.sinks)) METRICS.sink = ["the learned sink", "share that the sink takes", (value) => percent(value, 1)];
  // To begin with, a head that looks at few tokens, and neither at the first one nor at itself.
  const most = Math.max(...all.map((head) => head.entropy), 1e-9);
  const telling = (head) => (1 - head.first - head.self) * (1 - head.entropy / most);
  const begun = all.reduce((best, head) => (telling(head) > telling(best) ? head : best));
  const state = { layer: begun.l, head: begun.n, metric: "entropy", kind: "largest" };
  const atlasSaid = h("output", { class: "small" });
  const mapSaid = h("output", { class: "small" });
  const title = h("h3", {});
  const facts = h("p", { class: "key" });

  // -- the atlas: all heads, one square each --------------------------------------------------------
  function atlas(wide) {
    const left = 22;
    const size = Math.max(7, Math.min(26, Math.floor((wide - left) / heads)));
    const tall = Math.max(7, Math.min(size, layers.length > 40 ? 10 : 16));
    const metric = state.metric;
    const most = Math.max(...all.map((head) => head[metric]), 1e-9);
    const svg = g("svg", { width: left + heads * size, height: layers.length * tall + 18, "aria-label": "all heads: layers down, heads across; arrow keys choose one" });
    const groups = Array.from({ length: SHADES + 1 }, () => []);
    for (const head of all) {
      const step = head[metric] <= 0 ? 0 : Math.max(1, Math.round(head[metric] / most * SHADES));
      groups[step].push(`M${left + head.n * size} ${head.l * tall}h${size - 1}v${tall - 1}h${1 - size}z`);
    }
    groups.forEach((parts, step) => parts.length && svg.append(g("path", { d: parts.join(""), style: `fill:${tint(step)}` })));
    for (let layer = 0; layer < layers.length; layer += 1) {
      if (layer % (tall < 12 ? 5 : 2) === 0) svg.append(g("text", { x: left - 5, y: layer * tall + tall - 3, "text-anchor": "end" }, String(layer)));
    }
    for (let head = 0; head < heads; head += 1) {
      if (size >= 16 || head % 4 === 0) svg.append(g("text", { x: left + head * size + size / 2, y: layers.length * tall + 13, "text-anchor": "middle" }, String(head)));
    }
    const chosen = g("rect", { class: "chosen", width: size + 1, height: tall + 1, x: left + state.head * size - 1, y: state.layer * tall - 1 });
    svg.append(chosen);
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const [x, y] = [Math.floor((event.clientX - box.left - left) / size), Math.floor((event.clientY - box.top) / tall)];
      return x >= 0 && y >= 0 && y < layers.length && x < layers[y].heads.length ? [x, y] : null;
    };
    const place = pointed(svg, heads, layers.length, at, tell, (x, y) => {
      state.layer = y;
      state.head = Math.min(x, layers[y].heads.length - 1);
      chosen.setAttribute("x", left + state.head * size - 1);
      chosen.setAttribute("y", state.layer * tall - 1);
      show();
    });
    place(state.head, state.layer);
    return svg;
  }
  function tell(x, y) {
    const head = layers[y].heads[Math.min(x, layers[y].heads.length - 1)];
    const [, , written] = METRICS[state.metric];
    say(atlasSaid, `layer ${y}, head ${x}: ${written(head[state.metric])}`);
  }

  // -- the map of one head --------------------------------------------------------------------------
  const block = (n) => (width === 1 ? label(tokens[n], 14) : `${n * width}–${Math.min((n + 1) * width, read) - 1}`);
  function map(wide) {
    const layer = layers[state.layer];
    const head = layer.heads[state.head];
    const values = head[state.kind] ?? head.largest;
    const left = wide < 480 ? 64 : 96;
    const right = 62;
    const size = Math.max(3, Math.min(34, Math.floor((wide - left - right) / side)));
    const gap = size > 8 ? 1 : 0;
    const top = width === 1 ? 76 : 56;
    const svg = g("svg", { width: left + side * size + right, height: top + side * size + 8, "aria-label": `layer ${state.layer}, head ${state.head}: rows look at columns; arrow keys read the weights out` });
    const body = g("g", { transform: `translate(${left} ${top})` });
    const list = [];
    const hidden = [];
    values.forEach((row, y) => row.forEach((value, x) => {
      const outside = layer.window !== null && (x + 1) * width - 1 <= y * width - layer.window;
      if (outside) hidden.push(`M${x * size} ${y * size + size}l${size} ${-size}`);
      else list.push([x, y, value / 10000]);
    }));
    body.append(...cells(list, size, gap).filter(Boolean));
    if (hidden.length) body.append(g("path", { class: "gone", d: hidden.join("") }));
    const every = Math.max(1, Math.ceil(13 / size));
    for (let n = 0; n < side; n += every) {
      const strong = width === 1 && n >= promptLength ? "mono" : "mono strong";
      svg.append(g("text", { class: strong, x: left - 6, y: top + n * size + size / 2 + 4, "text-anchor": "end" }, width === 1 ? label(tokens[n], wide < 480 ? 8 : 13) : block(n)),
        g("text", { class: strong, transform: `translate(${left + n * size + size / 2 + 4} ${top - 6}) rotate(-55)` }, width === 1 ? label(tokens[n], 9) : block(n)));
    }
    // Beside each row its entropy.
    const most = Math.max(...all.flatMap((other) => other.entropies), 1e-9);
    head.entropies.forEach((value, y) => body.append(g("rect", { x: side * size + 8, y: y * size + Math.max(0, size / 2 - 4), width: Math.max(0.5, value / most * (right - 14)), height: Math.min(8, size), style: "fill:var(--c1)" })));
    svg.append(g("text", { x: left + side * size + 8, y: top - 8 }, "entropy"));
    if (width === 1 && promptLength < side) body.append(g("path", { class: "axis", d: `M${-left + 8} ${promptLength * size - 0.5}H${side * size + right}` }));
    const cursor = g("rect", { class: "cursor", width: size, height: size, visibility: "hidden" });
    body.append(cursor);
    svg.append(body);
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const [x, y] = [Math.floor((event.clientX - box.left - left) / size), Math.floor((event.clientY - box.top - top) / size)];
      return y >= 0 && y < side && x >= 0 && x <= y ? [x, y] : null;
    };
    pointed(svg, side, side, at, (x, y) => {
      const column = Math.min(x, y);
      cursor.setAttribute("x", column * size);
      cursor.setAttribute("y", y * size);
      cursor.setAttribute("visibility", "visible");
      const value = values[y][column] / 10000;
      say(mapSaid, width === 1 ? [`${y}: `, h("b", {}, glyphs(textOf(tokens[y]))), " looks at ", `${column}: `, h("b", {}, glyphs(textOf(tokens[column]))), ` with ${percent(value)}`]
        : `positions ${block(y)} look at ${block(column)} with ${percent(value)} ${state.kind === "mean" ? "on average" : "at most"}`);
    });
    return svg;
  }

  function show() {
    const layer = layers[state.layer];
    const head = layer.heads[state.head];
    say(title, `Layer ${state.layer}, head ${state.head}`);
    const groups = DATA.model.heads[state.layer] / DATA.model.kept_heads[state.layer];
    say(facts, Object.entries(METRICS).map(([name, [words, , written]]) => h("span", {}, `${words} `, h("b", {}, written(head[name])))),
      h("span", {}, "window ", h("b", {}, layer.window === null ? "none" : count(layer.window))),
      h("span", {}, "reads keys of head ", h("b", {}, String(Math.floor(state.head / groups)))));
    pickLayer.show(state.layer);
    pickHead.show(state.head);
    drawn.again();
    tell(state.head, state.layer);
    say(mapSaid, "");
    if (table.open) tableOf();
  }

  const map_ = fitted(map);
  const drawn = map_;
  const atlasBox = fitted(atlas);
  const both = () => { atlasBox.again(); show(); };
  const pickLayer = numberInput("layer", layers.length - 1, state.layer, (value) => { state.layer = value; state.head = Math.min(state.head, layers[value].heads.length - 1); both(); });
  const pickHead = numberInput("head", heads - 1, state.head, (value) => { state.head = Math.min(value, layers[state.layer].heads.length - 1); both(); });
  const metric = h("select", {}, Object.entries(METRICS).map(([name, [words, unit]]) => h("option", { value: name }, `${words} (${unit})`)));
  metric.addEventListener("change", () => { state.metric = metric.value; atlasBox.again(); tell(state.head, state.layer); });
  const table = h("details", {}, h("summary", {}, "This head as a table"));
  const tableBody = h("div");
  table.append(tableBody);
  table.addEventListener("toggle", () => { if (table.open) tableOf(); });
  function tableOf() {
    const head = layers[state.layer].heads[state.head];
    const values = head[state.kind] ?? head.largest;
    say(tableBody, tabulated(["looks", "#entropy", ...values.map((_, n) => `#${width === 1 ? `${n} ${label(tokens[n], 10)}` : block(n)}`)],
      values.map((row, y) => [width === 1 ? `${y} ${label(tokens[y], 14)}` : block(y), head.entropies[y].toFixed(2), ...row.map((value) => percent(value / 10000))])));
  }
  const kinds = width > 1 ? choice([["largest", "the largest"], ["mean", "the mean"]], "largest", (kind) => { state.kind = kind; show(); }) : null;
  add("attention", h("div", { class: "two left" },
    h("div", {}, h("h3", {}, "All heads"), h("div", { class: "controls" }, h("label", {}, h("span", { class: "hidden" }, "colour by"), metric)),
      h("div", { class: "wide" }, atlasBox.box), atlasSaid, h("p", { class: "legend" }, shades("less", "more")), h("p", { class: "small quiet" }, "Layers down, heads across.")),
    h("div", {}, title, h("div", { class: "controls" }, pickLayer.box, pickHead.box, kinds), facts, h("div", { class: "wide" }, map_.box), mapSaid,
      h("p", { class: "small quiet" }, width === 1 ? `Rows look at columns${promptLength < side ? "; below the line are tokens of the answer, step by step" : ""}. ` : "Rows look at columns, by position. ", "Shades go by the square root", layers.some((layer) => layer.window !== null) ? "; hatched is what a window hides." : "."), h("p", { class: "legend" }, shades("0 %", "100 %")), table)));
  show();
}
