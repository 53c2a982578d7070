// Part 6: where the seconds and the bytes go.
{
  const { time } = DATA;
  const rows = time.rows;
  const sum = (phase) => rows.reduce((n, row) => n + row[phase], 0);
  const HUES = { norms: "c3", attention: "c0", cache: "c4", "feed-forward": "c1", "residual sums": "c2", "LM head": "c6" };
  const hueOf = (stage) => HUES[stage] ?? "c5";
  const others = time.beside ?? {};
  lead("time", "The whole path, from text to text, took ", h("b", {}, seconds(time.whole)), ": the prompt’s pass ", h("b", {}, seconds(sum("prompt"))),
    time.steps ? [`, and ${plural(time.steps, "step")} of `, h("b", {}, seconds(sum("step"))), " each"] : "", `. The stages below add up to ${percent(time.accounted, 1)} of it; the rest lies between them. `,
    "A second run was timed, on the engine’s own attention kernel: what is read for the first time takes longer.");

  function stacked(phase, name) {
    const all = sum(phase);
    const parts = rows.filter((row) => row[phase] / all > 0.001);
    return h("div", {}, h("p", { class: "small quiet" }, `${name}: ${seconds(all)}`),
      h("div", { class: "stack", role: "img", "aria-label": parts.map((row) => `${row.stage} ${percent(row[phase] / all, 0)}`).join(", ") },
        parts.map((row) => h("span", { style: `flex:${row[phase] / all * 100};background:var(--${hueOf(row.stage)})`, title: `${row.stage}: ${seconds(row[phase])}, ${percent(row[phase] / all, 1)}` }))));
  }
  add("time", stacked("prompt", "the prompt"), time.steps ? stacked("step", "a step") : "",
    h("p", { class: "key" }, Object.keys(HUES).map((stage) => h("span", {}, h("i", { style: `background:var(--${hueOf(stage)})` }), stage)), h("span", {}, h("i", { style: "background:var(--c5)" }), "all else")));

  const named = Object.keys(others);
  add("time", h("h3", {}, "Stage by stage"), tabulated(
    ["stage", "#prompt", "#a step", "#of the whole", "#new tensors", "#weights", ...named.flatMap((name) => [`#${name}, prompt`, `#${name}, a step`]), "~what it does"],
    rows.map((row) => [row.stage, row.prompt ? seconds(row.prompt) : "", row.step ? seconds(row.step) : "", percent(row.share, 1), row.tensors ? bytes(row.tensors) : "", row.weights ? bytes(row.weights) : "",
      ...named.flatMap((name) => [seconds(others[name][row.stage]?.prompt ?? null), seconds(others[name][row.stage]?.step ?? null)]),
      h("span", { class: "quiet" }, row.explained)]),
    ["together", seconds(sum("prompt")), time.steps ? seconds(sum("step")) : "", percent(time.accounted, 1), "", bytes(rows.reduce((n, row) => n + (row.weights ?? 0), 0)),
      ...named.flatMap((name) => [seconds(others[name]["whole pass"]?.prompt ?? null), seconds(others[name]["whole pass"]?.step ?? null)]), ""]),
  h("p", { class: "small quiet" }, "New tensors: the most bytes that were alive at once in one call of the stage; what kernels take for themselves is not seen. Stages of layers are those of all layers together.",
    DATA.model.tied ? " The LM head reads the embedding’s table once more." : ""));

  // -- layer by layer -------------------------------------------------------------------------------
  const kinds = ["attention", "feed-forward", "norms", "cache"];
  function layers(phase) {
    return (wide) => {
      const values = time.layers[phase];
      const n = DATA.model.layers;
      const per = phase === "steps" ? Math.max(1, time.steps) : 1;
      const totals = Array.from({ length: n }, (_, layer) => kinds.reduce((all, kind) => all + values[kind][layer] / per, 0));
      const most = Math.max(...totals, 1e-9);
      const [left, tall] = [56, 92];
      const size = (wide - left) / n;
      const svg = g("svg", { width: wide, height: tall + 34, role: "img", "aria-label": `time of each layer, at most ${seconds(most)}` });
      svg.append(g("path", { class: "axis", d: `M${left} ${tall + 8.5}H${wide}` }), g("text", { x: left - 6, y: 14, "text-anchor": "end" }, seconds(most)), g("text", { x: left - 6, y: tall + 10, "text-anchor": "end" }, "0"));
      for (let layer = 0; layer < n; layer += 1) {
        let from = tall + 8;
        for (const kind of kinds) {
          const part = values[kind][layer] / per / most * tall;
          from -= part;
          svg.append(g("rect", { x: left + layer * size, y: from, width: Math.max(1, size - 1.5), height: part, style: `fill:var(--${hueOf(kind)})` }, g("title", {}, `layer ${layer}, ${kind}: ${seconds(values[kind][layer] / per)}`)));
        }
        if (layer % (size < 14 ? 5 : 1) === 0) svg.append(g("text", { x: left + layer * size + size / 2, y: tall + 22, "text-anchor": "middle" }, String(layer)));
      }
      return svg;
    };
  }
  add("time", h("h3", {}, "Layer by layer"), h("div", { class: "two" },
    h("div", {}, h("p", { class: "small quiet" }, "the prompt"), fitted(layers("prompt")).box),
    time.steps ? h("div", {}, h("p", { class: "small quiet" }, "a step"), fitted(layers("steps")).box) : ""),
  folded("Layers as a table", tabulated(["layer", ...kinds.flatMap((kind) => [`#${kind}, prompt`, `#a step`])], Array.from({ length: DATA.model.layers }, (_, layer) => [
    String(layer), ...kinds.flatMap((kind) => [seconds(time.layers.prompt[kind][layer]), time.steps ? seconds(time.layers.steps[kind][layer] / time.steps) : ""])]))));
}
