// The head of the page, and what follows the reader.
{
  const { model, prompt, params } = DATA;
  const sent = DATA.answer.map((row) => row.out).join("");
  // Of a long prompt the beginning and the end; the first part has all of it.
  const text = [...(prompt.text ?? plural(promptLength, "id"))];
  const isLong = text.length > 240;
  if (isLong) byId("story").classList.add("long");
  say(byId("story"), isLong ? [glyphs(text.slice(0, 150).join(""), null), h("span", { class: "quiet" }, ` … (${count(text.length - 220)} characters, see part 1) … `), glyphs(text.slice(-70).join(""), null)]
    : glyphs(text.join(""), null), h("span", { class: "answer" }, glyphs(sent, null)));
  const fact = (value, name) => h("span", {}, h("b", {}, value), ` ${name}`);
  const total = Object.values(model.parameters).reduce((n, part) => n + part.numbers, 0);
  say(byId("facts"), fact(model.name, ""), fact(many(total), "parameters"), fact(`${model.layers}`, "layers"), fact(`${model.dim}`, "wide"),
    fact(`${model.dtype}`, `on ${model.device}`), fact(`${promptLength} + ${DATA.answer.length}`, "tokens"),
    fact(params.temperature ? `temperature ${params.temperature}` : "greedy", ""));
  const save = h("a", { href: "#", download: "inspect.json" }, "Save all numbers as JSON");
  save.addEventListener("click", () => { save.href = URL.createObjectURL(new Blob([byId("data").textContent], { type: "application/json" })); });
  say(byId("foot"), save, `. Written by lockstep inspect, format ${DATA.format}. This page is one file and loads nothing.`);

  const bar = document.querySelector("nav ul");
  const links_ = [...document.querySelectorAll("nav a")];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links_) {
        if (link.hash === `#${entry.target.id}`) {
          link.setAttribute("aria-current", "true");
          bar.scrollLeft = link.offsetLeft - bar.offsetLeft - 16;
        } else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-20% 0px -75% 0px" });
  for (const part of document.querySelectorAll("section.part")) seen.observe(part);
}
