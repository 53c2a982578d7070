// Part 1: the text as tokens, how each came about, and the answer as it was streamed.
{
  const { prompt } = DATA;
  const words = prompt.words;
  const merged = words.reduce((n, word) => n + (word.pieces ?? []).reduce((m, piece) => m + (piece.merges?.length ?? 0), 0), 0);
  if (prompt.text === null) lead("tokens", `The prompt was given as ${plural(promptLength, "id")}: how they came about is not known.`);
  else {
    lead("tokens", "A tokenizer cuts the text into words and spells each word in tokens. ",
      h("b", {}, plural([...prompt.text].length, "character")), " became ", h("b", {}, plural(promptLength, "token")),
      ` of ${count(DATA.model.vocab)}`, merged ? [", by ", h("b", {}, plural(merged, "merge")), "."] : ".",
      " Choose a token to see where it comes from.");
  }

  const buttons = [];
  const chip = (id, i, note) => {
    const button = h("button", {
      type: "button", class: `token${special.has(id) ? " special" : ""}`, style: `--tint:var(--t${i % 5})`,
      "aria-pressed": "false", title: note, onclick: () => show(i),
    }, glyphs(special.has(id) ? NAMES[id]?.spelled ?? `#${id}` : textOf(id)), h("small", {}, String(id)));
    buttons.push(button);
    return button;
  };
  const line = h("p", { class: `text${tokens.length > 150 ? " long" : ""}`, tabindex: tokens.length > 150 ? "0" : null },
    prompt.tokens.map((token, i) => chip(token.id, i, `token ${i}, id ${token.id}`)),
    h("span", { class: "arrow", "aria-label": "answer" }, "→"),
    DATA.answer.map((row, i) => chip(row.id, promptLength + i, `answer token ${i}, id ${row.id}`)));
  const about = h("div", { class: "panel", "aria-live": "polite" });
  const making = h("div", { class: "panel" });
  add("tokens", line, h("div", { class: "two" }, about, making));

  function fact(name, value) { return [h("dt", {}, name), h("dd", {}, value)]; }

  function show(i) {
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(n === i)));
    const id = tokens[i];
    const known = NAMES[id];
    const own = i < promptLength ? prompt.tokens[i] : null;
    const word = own && own.word !== null ? words[own.word] : null;
    say(about, h("h3", {}, i < promptLength ? `Token ${i} of the prompt` : `Token ${i - promptLength} of the answer`),
      h("dl", { class: "pairs" },
        fact("id", String(id)),
        known && fact("spelled in the file", h("code", {}, known.spelled === null ? "nothing: no token has this id" : glyphs(known.spelled))),
        known?.bytes && fact("bytes", h("code", {}, known.bytes)),
        known?.bytes === null && fact("bytes", "depend on the tokens beside it"),
        own && own.word !== null && fact("characters", `${own.start} to ${own.end - 1} of the text`),
        special.has(id) && fact("special", "a control token, no text"),
        own && own.word === null && prompt.text !== null && fact("added", "by the tokenizer’s template, around the text"),
        word?.how === "added" && fact("added", "written out in the text, and taken before anything else"),
        word?.rule && fact("cut by", rule(word.rule)),
        word && !word.rule && word.how !== "added" && fact("cut by", "nothing: the whole stretch of text is one word"),
        !own && fact("chosen at", h("a", { href: "#choices", onclick: () => links.step(i - promptLength) }, `step ${i - promptLength}: see the candidates`))));
    if (word) explain(word, i);
    else say(making, h("h3", {}, "How it came about"), h("p", { class: "quiet" },
      own ? (prompt.text === null ? "It was given as an id." : "It is added around every text; nothing was merged.")
        : "The model chose it: the steps of the choice are in part 5."));
  }

  function rule(found) {
    const whole = `step ${found.step + 1} of the splitter, `;
    return [found.alternative === null ? `${whole}${found.name.toLowerCase()}: what was left between two matches` : `${whole}alternative ${found.which + 1} of ${found.of}: `,
      found.alternative !== null && h("code", {}, glyphs(found.alternative, "␣")),
      found.pattern && found.of > 1 ? folded("the whole pattern", h("code", { class: "small" }, glyphs(found.pattern, "␣"))) : null];
  }

  // The pieces of a word, one after the other: their symbols before and after every merge.
  function explain(word, token) {
    const title = h("h3", {}, "How ", h("bdi", {}, h("code", {}, glyphs(word.text.length > 40 ? `${word.text.slice(0, 40)}…` : word.text))), " is spelled");
    if (word.how === "added") return say(making, title, h("p", { class: "quiet" }, "A token of its own, as it stands in the text."));
    if (word.how === "looked up") return say(making, title, h("p", { class: "quiet" }, "Looked up in the vocabulary from the left, the longest token first."));
    if (word.how === "scored") {
      return say(making, title, h("p", { class: "quiet" }, "Of all spellings the one whose scores add up highest."),
        tabulated(["token", "#score"], word.ids.map((id, n) => [h("code", {}, glyphs(NAMES[id]?.spelled ?? "")), word.scores[n].toFixed(3)])));
    }
    // A long word is made of pieces that are merged alone; the one of this token comes first.
    const before = prompt.tokens.slice(0, token).filter((other) => other.word === prompt.tokens[token].word).length;
    let [piece, left] = [0, before];
    while (piece < word.pieces.length - 1) {
      const made = word.pieces[piece].symbols.length - (word.pieces[piece].merges?.length ?? 0);
      if (left < made) break;
      left -= made;
      piece += 1;
    }
    stepper(title, word, piece);
  }

  function stepper(title, word, which) {
    const piece = word.pieces[which];
    const several = word.pieces.length > 1
      ? h("p", { class: "small quiet" }, `piece ${which + 1} of ${word.pieces.length}, between spaces: no merge reaches across`) : null;
    if (piece.merges === null) {
      return say(making, title, several, h("p", {}, `${plural(piece.symbols.length, "symbol")}: too many merges to step through. The tokens are those above.`));
    }
    const states = [piece.symbols];
    for (const [at, , made] of piece.merges) states.push([...states.at(-1).slice(0, at), made, ...states.at(-1).slice(at + 2)]);
    const row = h("div", { class: "symbols" });
    const said = h("output", { class: "small" });
    const step = slider("merge", piece.merges.length, 0, draw);
    const spelled = (id) => glyphs(NAMES[id]?.spelled ?? `#${id}`);
    function draw(n) {
      const next = piece.merges[n];
      say(row, states[n].map((id, at) => h("span", {
        class: n && piece.merges[n - 1][0] === at ? "new" : next && (next[0] === at || next[0] + 1 === at) ? "next" : null,
      }, spelled(id), h("small", {}, String(id)))));
      if (!piece.merges.length) return say(said, states[0].length > 1 ? "No pair of neighbours may be merged." : "One symbol: there is nothing to merge.");
      if (!n) return say(said, `${plural(states[0].length, "symbol")} to begin with. Of all neighbours the dashed pair has the lowest rank.`);
      const [at, rank, made] = piece.merges[n - 1];
      return say(said, `merge ${n} of ${piece.merges.length}: rank ${count(rank)}, `, h("code", {}, spelled(states[n - 1][at]), " + ", spelled(states[n - 1][at + 1]), " → ", spelled(made)));
    }
    say(making, title, several, row, step.box, said, piece.merges.length ? folded("All merges as a table",
      tabulated(["merge", "#rank", "left", "right", "makes", "#id"], piece.merges.map(([at, rank, made], n) => [
        String(n + 1), count(rank), h("code", {}, spelled(states[n][at])), h("code", {}, spelled(states[n][at + 1])), h("code", {}, spelled(made)), String(made)]))) : null);
    step.set(0);
  }

  // -- the answer as it came ------------------------------------------------------------------------
  function why(row) {
    const said = [];
    if (row.end) said.push("an end token: it ends the answer and is no part of the text");
    else if (!row.certain && row.finish === null) said.push("held back: no character is complete yet");
    if (row.held) said.push(`${plural(row.held, "character")} held back: a stop string may begin here`);
    if (row.finish !== null) said.push(row.finish === "length" ? "the last one: the answer has its length" : row.end ? "" : "a stop string is complete");
    return said.filter(Boolean).join("; ");
  }
  add("tokens", h("h3", {}, "The answer as it was streamed"),
    h("p", { class: "lead small" }, "A token may end within a character, and a text may be the beginning of a stop string. What is not certain is held back."),
    tabulated(["#step", "token", "bytes", "certain", "sent", "~held back"], DATA.answer.map((row, i) => [
      String(i), h("code", {}, glyphs(NAMES[row.id]?.spelled ?? String(row.id))), h("code", {}, NAMES[row.id]?.bytes ?? ""),
      h("code", {}, glyphs(row.certain)), h("code", {}, glyphs(row.out)), why(row)])),
    folded("The prompt’s tokens as a table", tabulated(["#position", "token", "#id", "bytes", "#from", "#to"], prompt.tokens.map((token, i) => [
      String(i), h("code", {}, glyphs(NAMES[token.id]?.spelled ?? "")), String(token.id), h("code", {}, NAMES[token.id]?.bytes ?? ""), String(token.start), String(token.end)]))));
  if (prompt.normalised !== null) add("tokens", folded("What the normalizer made of the text", h("p", { class: "small" }, glyphs(prompt.normalised))));
  const inside = prompt.tokens.findIndex((token) => token.word !== null && (words[token.word].pieces?.[0]?.merges?.length ?? 0) > 3);
  show(Math.max(0, inside));
}
