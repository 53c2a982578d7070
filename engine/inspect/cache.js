// Part 4: what is kept of every token, what it costs, and where it lies.
{
  const { cache } = DATA;
  const total = cache.prompt + cache.answer - 1;
  const [own] = cache.growth.variants;
  const largest = cache.growth.tokens.at(-1);
  const windows = [...new Set(cache.layers.map((layer) => layer.window))];
  lead("cache", "Keys and values of every token are kept, so that a step reads one new token alone. A token takes ",
    h("b", {}, bytes(cache.per_token)), ` in ${plural(cache.layers.length, "layer")}; reading the prompt wrote `, h("b", {}, bytes(cache.per_token * cache.prompt)),
    `, and each step one token more. At the model’s context of ${count(largest)} tokens it is `, h("b", {}, bytes(own.bytes.at(-1))), ".");

  // -- growth ---------------------------------------------------------------------------------------
  const most = Math.max(...cache.growth.variants.flatMap((variant) => variant.bytes), 1);
  const hues = ["c0", "c1", "c2", "c3", "c4", "c6", "c5"];
  function chart(wide) {
    const [left, right, top, tall] = [58, wide < 480 ? 8 : 150, 10, 240];
    const inner = Math.max(80, wide - left - right);
    const svg = g("svg", { width: wide, height: top + tall + 34, role: "img", "aria-label": "bytes of the cache against tokens; the numbers are in the table below" });
    const x = (tokens_) => left + tokens_ / largest * inner;
    const y = (size) => top + tall - size / most * tall;
    for (let n = 0; n <= 4; n += 1) {
      const size = most * n / 4;
      svg.append(g("path", { class: "axis", d: `M${left} ${Math.round(y(size)) + 0.5}H${left + inner}` }), g("text", { x: left - 6, y: y(size) + 4, "text-anchor": "end" }, bytes(size)));
      svg.append(g("text", { x: x(largest * n / 4), y: top + tall + 16, "text-anchor": n === 4 ? "end" : n ? "middle" : "start" }, count(Math.round(largest * n / 4))));
    }
    svg.append(g("text", { x: left + inner / 2, y: top + tall + 32, "text-anchor": "middle" }, "tokens"));
    const ends = [];
    cache.growth.variants.forEach((variant, i) => {
      svg.append(g("path", { d: variant.bytes.map((size, n) => `${n ? "L" : "M"}${x(cache.growth.tokens[n]).toFixed(1)} ${y(size).toFixed(1)}`).join(""),
        style: `fill:none;stroke:var(--${hues[i % 7]});stroke-width:${i ? 1.5 : 2.75}` }));
      ends.push({ name: variant.name, hue: hues[i % 7], at: y(variant.bytes.at(-1)) });
    });
    if (right > 100) {
      let low = -Infinity;
      for (const end of ends.sort((a, b) => a.at - b.at)) {
        low = Math.max(end.at + 4, low + 14);
        svg.append(g("text", { x: left + inner + 8, y: low, style: `fill:var(--${end.hue})` }, end.name));
      }
    }
    return svg;
  }
  const drawn = fitted(chart);
  add("cache", h("h3", {}, "As the text grows"), drawn.box,
    tabulated(["cache", `#${count(total)} tokens`, `#${count(largest)} tokens`, "#of this one", "~what it is"], cache.growth.variants.map((variant, i) => [
      h("span", {}, h("i", { class: "bar", style: `display:inline-block;width:.7rem;background:var(--${hues[i % 7]});margin-right:.5rem` }), variant.name),
      bytes(Math.round(variant.now)), bytes(variant.bytes.at(-1)), own.bytes.at(-1) ? percent(variant.bytes.at(-1) / own.bytes.at(-1), 0) : "", variant.explained])),
    folded("Bytes at every length as a table", tabulated(["cache", ...cache.growth.tokens.map((n) => `#${count(n)}`)], cache.growth.variants.map((variant) => [variant.name, ...variant.bytes.map(bytes)]))),
    folded("Layer by layer as a table", tabulated(["layer", "window", "#slots", "#bytes", "#of a token"], cache.layers.map((layer, i) => [
      String(i), layer.window === null ? "none" : count(layer.window), count(layer.slots), bytes(layer.bytes), bytes(layer.per_token)]))));

  // -- work -----------------------------------------------------------------------------------------
  const { work } = cache;
  add("cache", h("h3", {}, "What it saves"),
    h("p", { class: "lead small" }, `For ${plural(cache.answer, "token")} of an answer. Without a cache every step reads the whole text again: `,
      h("b", {}, `${(work.without.multiplications / work.with_cache.multiplications).toFixed(1)} times`), " the multiplications."),
    tabulated(["", "#tokens read", "#multiplications", ""], [["the prompt alone", work.prefill], ["with the cache", work.with_cache], ["without a cache", work.without]].map(([name, row]) => [
      name, count(row.tokens), many(row.multiplications), h("span", { class: "bar", style: `width:${Math.max(0.2, row.multiplications / work.without.multiplications * 14)}rem` })])));

  // -- places ---------------------------------------------------------------------------------------
  const state = { step: 0 };
  const explained = {
    contiguous: () => "a row with a slot for every token",
    ring: (place) => (place.window === null ? "in layers without a window a ring has a slot for every token, and never comes round"
      : `a window of ${plural(place.window, "token")}: ${place.slots < total ? `${plural(place.slots, "slot")}, and then the oldest gives way` : "the text is shorter, and the ring has not come round"}`),
    paged: (place) => `blocks of ${place.block} slots, taken when they are needed; a second request has every other block`,
  };
  const strips = cache.places.map((place) => {
    const said = h("output", { class: "small" });
    const drawn_ = fitted((wide) => strip(place, wide, said));
    const title = h("h3", {}, `${place.kind}${place.window === null ? "" : `, window ${count(place.window)}`}`, place.kind === cache.kind ? h("span", { class: "quiet" }, " (this one)") : "");
    return { drawn: drawn_, box: h("div", {}, title, h("p", { class: "small quiet" }, explained[place.kind](place)), drawn_.box, said) };
  });
  function strip(place, wide, said) {
    const runs = place.after[state.step];
    const size = Math.max(1.5, Math.min(30, wide / place.slots));
    const across = Math.min(place.slots, Math.floor(wide / size));
    const lines = Math.ceil(place.slots / across);
    const tall = size < 6 ? 18 : Math.min(26, Math.max(14, size));
    const svg = g("svg", { width: across * size, height: lines * (tall + 6), "aria-label": `slots of the ${place.kind} cache; arrow keys read them out` });
    const held = new Map();
    for (const [slot, position, n] of runs) for (let i = 0; i < n; i += 1) held.set(slot + i, position + i);
    const newest = cache.prompt + state.step - 1;
    const paths = { empty: [], prompt: [], answer: [], newest: [] };
    for (let slot = 0; slot < place.slots; slot += 1) {
      const position = held.get(slot);
      const kind = position === undefined ? "empty" : position === newest && state.step ? "newest" : position < cache.prompt ? "prompt" : "answer";
      const [x, y] = [(slot % across) * size, Math.floor(slot / across) * (tall + 6)];
      paths[kind].push(`M${x.toFixed(2)} ${y}h${(size - (size > 4 ? 1 : 0)).toFixed(2)}v${tall}h${-(size - (size > 4 ? 1 : 0)).toFixed(2)}z`);
      if (size >= 17 && position !== undefined) svg.append(g("text", { x: x + size / 2, y: y + tall / 2 + 4, "text-anchor": "middle", style: `fill:${kind === "newest" ? "var(--ground)" : "var(--ink)"}` }, String(position)));
      if (place.block && slot && slot % place.block === 0) svg.append(g("path", { d: `M${x - 0.5} ${y - 3}v${tall + 6}`, style: "stroke:var(--ink);stroke-width:1" }));
    }
    const fills = { empty: "var(--cell)", prompt: "var(--t0)", answer: "var(--t1)", newest: "var(--answer)" };
    svg.prepend(...Object.entries(paths).filter(([, parts]) => parts.length).map(([kind, parts]) => g("path", { d: parts.join(""), style: `fill:${fills[kind]}` })));
    const cursor = g("rect", { class: "cursor", width: size, height: tall, visibility: "hidden" });
    svg.append(cursor);
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const [x, y] = [Math.floor((event.clientX - box.left) / size), Math.floor((event.clientY - box.top) / (tall + 6))];
      return x >= 0 && x < across && y >= 0 && y * across + x < place.slots ? [x, y] : null;
    };
    pointed(svg, across, lines, at, (x, y) => {
      const slot = Math.min(place.slots - 1, y * across + x);
      cursor.setAttribute("x", (slot % across) * size);
      cursor.setAttribute("y", Math.floor(slot / across) * (tall + 6));
      cursor.setAttribute("visibility", "visible");
      const position = held.get(slot);
      const where = place.block ? `block ${Math.floor(slot / place.block)}, slot ${slot % place.block}` : `slot ${slot}`;
      say(said, `${where}: `, position === undefined ? "nothing of this text" : [`position ${position}, `, h("b", {}, glyphs(textOf(tokens[position]))), place.slots <= position ? ", written over an older token" : ""]);
    });
    return svg;
  }
  const stepSaid = h("span", { class: "quiet" });
  const step = slider("step", cache.answer - 1, 0, (value) => {
    state.step = value;
    say(stepSaid, value ? `after step ${value}: ${plural(cache.prompt + value, "token")} kept` : `after the prompt: ${plural(cache.prompt, "token")} kept`);
    strips.forEach((each) => each.drawn.again());
  });
  add("cache", h("h3", {}, "Where tokens lie"),
    h("div", { class: "controls" }, step.box, stepSaid),
    h("p", { class: "key" }, [["t0", "prompt"], ["t1", "answer"], ["answer", "newest"], ["cell", "empty, or another’s"]].map(([hue, name]) => h("span", {}, h("i", { style: `background:var(--${hue})` }), name))),
    strips.map((each) => each.box));
  step.set(0);
}
