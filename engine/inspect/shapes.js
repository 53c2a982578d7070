// Part 2: every operation in order with what it makes.
{
  const { passes, formulas, calls } = DATA.operations;
  const { parameters } = DATA.model;
  const all = Object.values(parameters).reduce((n, part) => n + part.numbers, 0);
  const allBytes = Object.values(parameters).reduce((n, part) => n + part.bytes, 0);
  const layerRows = (pass) => pass.kinds[pass.layers[0]];
  const inPass = (pass) => pass.before.length + pass.behind.length + pass.layers.reduce((n, kind) => n + pass.kinds[kind].length, 0)
    - [...pass.before, ...pass.behind].filter((row) => row.kind === "probe").length
    - pass.layers.reduce((n, kind) => n + pass.kinds[kind].filter((row) => row.kind === "probe").length, 0);
  const views = layerRows(passes.prompt).filter((row) => row.kind === "view").length;
  const own = layerRows(passes.prompt).filter((row) => row.kind === "new");
  lead("shapes", passes.prompt.tokens < promptLength ? `The prompt is read in passes of at most ${plural(passes.prompt.tokens, "token")}; this is the first. It is ` : "The pass over the prompt is ", h("b", {}, `${count(inPass(passes.prompt))} calls`), ` of torch. A layer makes `,
    h("b", {}, bytes(own.reduce((n, row) => n + row.bytes, 0))), ` of new numbers in ${plural(own.length, "call")}; `,
    h("b", {}, plural(views, "call")), " only read the same bytes in another way. Attention goes step by step here (eager), so that scores and weights can be seen.");

  const hues = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];
  const parts = Object.entries(parameters).filter(([, part]) => part.numbers).sort((a, b) => b[1].numbers - a[1].numbers);
  add("shapes", h("h3", {}, `${count(all)} parameters, ${bytes(allBytes)}`),
    h("div", { class: "stack", role: "img", "aria-label": parts.map(([name, part]) => `${name} ${percent(part.numbers / all, 1)}`).join(", ") },
      parts.map(([, part], i) => h("span", { style: `flex:${part.numbers / all * 100};background:var(--${hues[i % 7]})` }))),
    h("p", { class: "key" }, parts.map(([name, part], i) => h("span", {}, h("i", { style: `background:var(--${hues[i % 7]})` }),
      h("b", {}, name), ` ${many(part.numbers)}, ${bytes(part.bytes)}`))),
    DATA.model.tied ? h("p", { class: "small quiet" }, "The LM head reads the embedding’s table: it has no parameters of its own.") : "");

  const state = { pass: "prompt", layer: 0, open: new Set(), every: false };
  const body = h("tbody");
  const pane = h("div", { class: "panel stay", "aria-live": "polite" });
  const layers = numberInput("layer", DATA.model.layers - 1, 0, (layer) => { state.layer = layer; draw(); });
  const every = h("input", { type: "checkbox" });
  every.addEventListener("change", () => { state.every = every.checked; draw(); });
  add("shapes", h("h3", {}, "Operations in order"),
    h("div", { class: "controls" },
      choice([["prompt", `${passes.prompt.tokens < promptLength ? "the first pass" : "the prompt"}: ${plural(passes.prompt.tokens, "token")}`], ["step", "a step: 1 token"]], "prompt", (pass) => { state.pass = pass; draw(); }),
      layers.box, h("label", {}, every, "every call of torch")),
    h("div", { class: "two right" },
      h("div", { class: "wide" }, h("table", { class: "ops" },
        h("thead", {}, h("tr", {}, ["operation", "shape", "type", "new bytes", "without new bytes"].map((name, i) => h("th", { scope: "col", class: `${i === 3 ? "n" : ""}${i === 2 || i === 4 ? " optional" : ""}` }, name)))), body)),
      pane));

  // Rows of one probe: its calls, and what it shows in the end.
  function grouped(rows) {
    const groups = [];
    for (const row of rows) {
      const last = groups.at(-1);
      if (last && last.path === row.path) last.rows.push(row);
      else groups.push({ path: row.path, rows: [row] });
    }
    return groups;
  }

  function explain(path, rows) {
    const [title, formula, words] = formulas[path] ?? [path.split(".").at(-1), "", ""];
    const shown = rows.find((row) => row.kind === "probe");
    const reads = [...new Set(rows.flatMap((row) => row.reads))];
    say(pane, h("h3", {}, path ? h("code", {}, path) : "before the first operation"), h("p", { class: "small quiet" }, title),
      formula && h("p", { class: "formula" }, formula), words && h("p", { class: "small" }, words),
      h("p", { class: "small quiet" }, [
        shown ? `shows ${shape(shown.shape)}, ${shown.dtype}, ${bytes(shown.bytes)}` : "",
        reads.length ? `reads ${reads.join(", ")}` : "",
        `${plural(rows.filter((row) => row.kind !== "probe").length, "call")}, ${rows.filter((row) => row.kind === "view").length} of them views`,
      ].filter(Boolean).map((text) => [text, h("br")])));
  }

  function operation(group, key) {
    const { path, rows } = group;
    const shown = rows.findLast((row) => row.kind === "probe") ?? rows.at(-1);
    const inner = rows.filter((row) => row.kind !== "probe");
    const made = inner.filter((row) => row.kind === "new").reduce((n, row) => n + row.bytes, 0);
    const open = state.every || state.open.has(key);
    const button = h("button", {
      type: "button", "aria-expanded": String(open), title: formulas[path]?.[1] ?? "",
      onclick: () => { state.open[state.open.has(key) ? "delete" : "add"](key); draw(); byId("shapes").querySelector(`[data-key="${key}"]`)?.focus(); },
      "data-key": key,
    }, h("code", {}, path || "plan of the pass"));
    const line = h("tr", { class: "probe", onpointerenter: () => explain(path, rows), onfocusin: () => explain(path, rows) },
      h("th", { scope: "row" }, button), h("td", { class: "shape" }, h("code", {}, shape(shown.shape))), h("td", { class: "optional" }, shown.dtype),
      h("td", { class: "n", title: `${count(made)} bytes of new numbers` }, made ? bytes(made) : "–"),
      h("td", { class: "optional quiet small" }, [...new Set(inner.filter((row) => row.kind !== "new").map((row) => row.name))].join(" · ")));
    if (!open) return [line];
    return [line, ...inner.map((row) => h("tr", { class: "call" },
      h("th", { scope: "row", title: calls[row.name] ?? "" }, h("code", {}, row.name), calls[row.name] ? h("span", { class: "small optional" }, `  ${calls[row.name]}`) : ""),
      h("td", { class: "shape", title: `from ${row.inputs.map(shape).join(" and ")}` }, h("code", {}, shape(row.shape))), h("td", { class: "optional" }, row.dtype),
      h("td", { class: "n" }, row.kind === "new" ? bytes(row.bytes) : "–"), h("td", { class: "optional" }, row.kind === "new" ? "" : h("span", { class: "tag view" }, row.kind))))];
  }

  function draw() {
    const pass = passes[state.pass];
    const kind = pass.layers[state.layer];
    const alike = pass.layers.flatMap((other, layer) => (other === kind ? [layer] : []));
    const part = (title, rows, name) => [h("tr", { class: "group" }, h("th", { scope: "rowgroup", colspan: 5 }, title)),
      ...grouped(rows).flatMap((group, i) => operation(group, `${name}${i}`))];
    say(body, part("before the layers", pass.before, "b"),
      part(`layer ${state.layer}: ${alike.length === 1 ? `no other makes just the same calls${state.layer ? "" : ", as the first makes the mask for all"}` : `${plural(alike.length, "layer")} do the same`}`, pass.kinds[kind], "l"),
      part("behind the layers", pass.behind, "a"));
    layers.show(state.layer);
  }
  draw();
  explain("attn.scores", layerRows(passes.prompt).filter((row) => row.path === "attn.scores"));
}
