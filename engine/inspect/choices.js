// Part 5: how each token of the answer was chosen, and what every layer would have said.
{
  const steps = DATA.choices;
  const drawnOnes = steps[0].drawn;
  const stages = steps[0].stages;
  lead("choices", "The last token’s numbers become a score of every token of the vocabulary, and the scores shares of 100 %. ",
    stages.length > 1 ? `${plural(stages.length - 1, "step")} of sampling change them, in this order. ` : "",
    drawnOnes ? "A token is drawn from what is left."
      : ["The most likely token is taken. ", stages.length > 1 ? "" : "Nothing changes the shares in between: ask for a temperature, top-k or a penalty to see their steps."]);

  const state = { step: 0, layer: DATA.model.layers, column: 0 };
  const chips = steps.map((step, i) => h("button", { type: "button", class: "token", style: "--tint:var(--t1)", "aria-pressed": "false", onclick: () => set(i) },
    glyphs(textOf(step.chosen)), h("small", {}, `step ${i}`)));
  const body = h("div");
  const lensSaid = h("div", { class: "panel stay", "aria-live": "polite" });
  add("choices", h("p", { class: `text${steps.length > 100 ? " long" : ""}` }, chips), body);

  function candidates(stage, step, before) {
    const order = step.ids.map((id, i) => [id, stage.shares[i], i]).sort((a, b) => b[1] - a[1]);
    return h("div", {}, h("h4", {}, stage.name, stage.value ? h("span", { class: "quiet" }, ` ${stage.value}`) : ""),
      h("p", {}, `${stage.explained}. ${plural(stage.left, "token")} left, entropy ${stage.entropy === null ? "none" : `${stage.entropy.toFixed(2)} bits`}`),
      h("div", { role: "list" }, order.map(([id, share, i]) => h("div", {
        role: "listitem", class: `cand${id === step.chosen ? " picked" : ""}${share === 0 ? " cut" : ""}`,
        title: `id ${id}, logit of the model ${step.logits[i]}${before ? `, before ${chance(before.shares[i])}` : ""}`,
      }, h("span", { class: "name" }, glyphs(textOf(id))), h("span", {}, h("span", { class: "bar", hidden: !share, style: `width:${(share ?? 0) * 100}%` })), h("span", { class: "value" }, chance(share))))));
  }

  function set(i) {
    state.step = i;
    chips.forEach((chip, n) => chip.setAttribute("aria-pressed", String(n === i)));
    const step = steps[i];
    const place = step.stages[0].shares.filter((share) => share > step.stages[0].shares[step.ids.indexOf(step.chosen)]).length;
    const before = i ? plain(textOf(steps[i - 1].chosen)) : "the prompt";
    say(body, h("h3", {}, `Step ${i}, behind ${before}: `, h("bdi", {}, glyphs(textOf(step.chosen))), ` was ${step.drawn ? "drawn" : "taken"}`,
      step.ids.includes(step.chosen) && place ? `, though ${plural(place, "other")} of the model’s own were likelier` : ""),
      h("div", { class: "steps", tabindex: "0", role: "region", "aria-label": "candidates after each step" }, step.stages.map((stage, n) => candidates(stage, step, step.stages[n - 1]))),
      folded("These candidates as a table", tabulated(["token", "#id", "#logit", ...step.stages.map((stage) => `#${stage.name} ${stage.value}`)], step.ids.map((id, n) => [
        h("code", {}, glyphs(textOf(id))), String(id), String(step.logits[n]), ...step.stages.map((stage) => chance(stage.shares[n]))]))));
  }
  links.step = (i) => set(i);

  // -- the logit lens -------------------------------------------------------------------------------
  const SHOWN = Math.min(steps.length, 24);
  const cellsOf = [];
  const name = (layer) => (layer ? `layer ${layer - 1}` : "embedding");
  const rows = Array.from({ length: DATA.model.layers + 1 }, (_, n) => DATA.model.layers - n);
  const lens = h("table", { class: "lens" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "would say"), steps.slice(0, SHOWN).map((step) => h("th", { scope: "col" }, glyphs(textOf(step.chosen)))))),
    h("tbody", {}, rows.map((layer) => h("tr", {}, h("th", { scope: "row" }, name(layer)), steps.slice(0, SHOWN).map((step, column) => {
      const said = step.lens[layer];
      const strong = shade(said.shares[0]);
      const button = h("button", {
        type: "button", tabindex: "-1", "aria-pressed": "false", class: said.ids[0] === step.chosen ? "hit" : null,
        style: `background:${tint(strong)};color:${strong > SHADES * 0.6 ? "var(--ground)" : "var(--ink)"}`,
        "aria-label": `${name(layer)}, step ${column}: ${plain(textOf(said.ids[0]))} ${chance(said.shares[0])}`,
        onclick: () => look(layer, column), onfocus: () => look(layer, column),
      }, glyphs(textOf(said.ids[0])));
      cellsOf.push({ layer, column, button });
      return h("td", {}, button);
    })))));
  lens.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    cellsOf.find((cell) => cell.layer === state.layer + by[0] && cell.column === state.column + by[1])?.button.focus();
  });
  function look(layer, column) {
    [state.layer, state.column] = [layer, column];
    for (const cell of cellsOf) {
      const here = cell.layer === layer && cell.column === column;
      cell.button.setAttribute("aria-pressed", String(here));
      cell.button.tabIndex = here ? 0 : -1;
    }
    const step = steps[column];
    const said = step.lens[layer];
    say(lensSaid, h("h3", {}, `If the model ended after ${layer ? `layer ${layer - 1}` : "the embedding"}`),
      h("div", {}, said.ids.map((id, n) => h("div", { class: `cand${id === step.chosen ? " picked" : ""}` }, h("span", { class: "name" }, glyphs(textOf(id))),
        h("span", {}, h("span", { class: "bar", style: `width:${(said.shares[n] ?? 0) * 100}%` })), h("span", { class: "value" }, chance(said.shares[n]))))),
      h("p", { class: "small quiet" }, "What was chosen in the end, ", h("b", {}, glyphs(textOf(step.chosen))), `, is number ${count(said.rank + 1)} here, with ${chance(said.chosen)}.`),
      h("p", { class: "small quiet" }, `Step ${column}. The last norm and the head read each layer’s result as if it were the last one (the “logit lens”).`));
  }
  add("choices", h("h3", {}, "Layer by layer: the logit lens"),
    h("p", { class: "lead small" }, "The likeliest token after each layer, darker where it is surer; underlined where it is the one that was chosen in the end. ",
      SHOWN < steps.length ? `The first ${SHOWN} of ${steps.length} steps; the JSON document has all.` : ""),
    h("div", { class: "two right" }, h("div", { class: "wide" }, lens), lensSaid));
  set(0);
  look(DATA.model.layers, 0);
}
