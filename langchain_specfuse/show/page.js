"use strict";
// The page of one run. Text of models is shown as text nodes and attributes; it is never parsed as HTML.

const run = JSON.parse(document.getElementById("run").textContent);
const split = JSON.parse(document.getElementById("pieces").textContent);
const rounds = run.rounds;
const members = run.members;
const part = (id) => document.getElementById(id);
const look = new Map(members.map((name, at) => [name, { label: String(at + 1), kind: `m${at % 8}` }]));
const DASHES = ["", "dashed", "dotted"];
const FINISHED = { stop: "its author ended it", stop_string: "a stop string appeared", length: "the budget was used up" };
const LEAVES = { exit: "voted out", error: "failed", timeout: "too slow", nan: "returned nonsense", overflow: "its context was full", not_found: "not found", budget: "the budget was spent" };
let chosen = -1;

// --- helpers --------------------------------------------------------------------------------------------------------

function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Control characters as symbols, as on the terminal.
function visible(text) {
  return text.replace(/[\x00-\x08\x0b-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0))).replace(/[\x7f-\x9f]/g, "\ufffd");
}

// An entry of the data itself: a member may be called "constructor".
function of(table, name) {
  return table && Object.hasOwn(table, name) ? table[name] : undefined;
}

const list = (value) => value ?? [];
const names = (table) => Object.keys(table ?? {});
const sum = (numbers) => numbers.reduce((a, b) => a + (b ?? 0), 0);
const number = (value, digits = 3) => (typeof value === "number" ? value.toFixed(digits) : "–");
const count = (many, one) => `${many} ${one}${many === 1 ? "" : "s"}`;
const said = (draft) => JSON.stringify([draft.text, !!draft.ended]);
const kind = (name) => look.get(name)?.kind ?? "";
const badge = (name) => node("span", { class: `badge ${kind(name)}`, "aria-hidden": "true" }, look.get(name)?.label ?? "·");
const head = (text, scope = "col", cls = "") => node("th", { scope, class: cls }, ...[text].flat());
const cell = (...children) => node("td", {}, ...children);
const words = (text) => node("td", { class: "words", dir: "auto" }, visible(text));
const named = (name) => node("th", { scope: "row" }, badge(name), visible(name));

function table(caption, heads, rows) {
  const made = node("table", {}, node("caption", {}, caption));
  made.append(node("thead", {}, node("tr", {}, ...heads.map((text) => (typeof text === "string" ? head(text) : text)))));
  made.append(node("tbody", {}, ...rows));
  return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

function bar(share, name) {
  const made = node("span", { class: `bar ${kind(name)}`, "aria-hidden": "true" });
  made.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return made;
}

// A long table is made when it is opened.
function folded(title, make) {
  const made = node("details", {}, node("summary", {}, title));
  made.addEventListener("toggle", () => made.open && made.children.length < 2 && made.append(make()));
  return made;
}

// --- the whole run --------------------------------------------------------------------------------------------------

function header() {
  if (run.question.trim()) part("question").textContent = visible(run.question);
  const last = rounds.at(-1);
  const seconds = sum(rounds.flatMap((item) => Object.values(item.seconds ?? {})));
  const tokens = sum(rounds.map((item) => of(item.drafts, item.winner)?.tokens));
  const ending = last ? of(FINISHED, last.finish) ?? "it is incomplete" : "no segment was agreed";
  part("summary").textContent = `${count(rounds.length, "round")}, ${count(members.length, "member")}, ${count(tokens, "token")} in ${seconds.toFixed(1)} s; ${ending}`;
  part("error").hidden = !run.error;
  part("error").textContent = `The answer broke off: ${visible(run.error)}`;
}

function legend() {
  const last = rounds.at(-1)?.weights;
  for (const name of members) {
    const wins = rounds.filter((item) => item.winner === name).length;
    const weight = of(last, name);
    const outcome = `: won ${count(wins, "round")}, ${weight === undefined ? "left" : `weight ${number(weight, 2)}`}`;
    part("legend").append(node("li", {}, badge(name), node("bdi", {}, visible(name)), outcome));
  }
  if (names(split).length) {
    part("legend").append(node("li", {}, node("span", { class: "badge", "aria-hidden": "true" }, "·"), "forced text: the format leaves no choice, so there is no vote"));
  }
}

function answer() {
  const shown = document.createDocumentFragment();
  let before = null;
  rounds.forEach((item, at) => {
    const shownText = visible(item.text) || (item.ended ? "■" : "…");
    const label = `Round ${item.round}, ${item.winner}: ${shownText.trim() || "white space"}`;
    const segment = node("span", { class: "segment", role: "option", tabindex: at ? "-1" : "0", "aria-selected": "false", "aria-label": label });
    segment.dataset.at = at;
    for (const [author, text] of split[at] ?? [[item.winner, item.text]]) {
      const piece = node("span", { class: author ? `piece ${kind(author)}` : "piece forced" }, visible(text) || shownText);
      if (author !== before) piece.dataset.by = look.get(author)?.label ?? "·";
      before = author;
      segment.append(piece);
    }
    shown.append(segment);
  });
  part("answer").append(shown);
  if (!rounds.length) part("answer").replaceWith(node("p", {}, "No segment was agreed."));
}

function weights() {
  if (!rounds.length) return null;
  const panels = [rounds[0].weights_before ?? rounds[0].weights ?? {}, ...rounds.map((item) => item.weights ?? {})];
  const lines = members.map((name, at) => ({
    label: look.get(name).label, kind: kind(name), dash: DASHES[at % 3], points: panels.map((panel) => of(panel, name) ?? null),
  }));
  const ranges = members.map((name, at) => {
    const points = lines[at].points.filter((value) => value !== null);
    return `${name} from ${number(points[0], 2)} to ${number(points.at(-1), 2)}`;
  });
  const plot = plotted(lines, rounds.length, `Voting weights. ${ranges.join("; ")}.`);
  plot.picture.addEventListener("click", (event) => choose(Math.min(rounds.length, Math.max(1, plot.placeAt(event))) - 1));
  const asTable = folded("As a table", () =>
    table("Weights after each round", ["round", ...members], rounds.map((item) =>
      node("tr", {}, head(String(item.round), "row"), ...members.map((name) => cell(number(of(item.weights, name)))))))
  );
  const scroll = node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Weights over the rounds" }, plot.picture);
  part("weights").append(scroll, node("p", { class: "hint" }, "Numbers are those of the members above; a cross marks a departure; the vertical line marks the chosen round. Click to choose another."), asTable);
  return plot.mark;
}

function left() {
  const gone = rounds.flatMap((item) => list(item.left).map((one) => ({ round: item.round, ...one })));
  if (!gone.length) return part("left").append("All members stayed to the end.");
  part("left").append(table("Members that left", [head("member", "col", "words"), "round", head("how", "col", "words"), head("why", "col", "words")],
    gone.map((one) => node("tr", {}, named(one.member), cell(String(one.round)), words(of(LEAVES, one.kind) ?? one.kind ?? ""), words(one.reason ?? "")))));
}

function thoughts(items, place) {
  for (const item of items) {
    for (const name of names(item.thoughts)) {
      const text = item.thoughts[name];
      place.append(folded(`Round ${item.round}, ${visible(name)}: ${count(text.length, "character")}`, () =>
        node("div", { class: `thought ${kind(name)}`, dir: "auto" }, visible(text))));
    }
  }
}

function costs() {
  const wall = (phase) => sum(rounds.map((item) => of(item.seconds, phase)));
  const own = (phase, name, what) => sum(rounds.map((item) => of(of(item.tokens, phase), name)?.[what]));
  const longest = Math.max(1e-9, ...members.map((name) => own("draft", name, "seconds") + own("verify", name, "seconds")));
  const rows = members.map((name) => {
    const [drafting, verifying] = [own("draft", name, "seconds"), own("verify", name, "seconds")];
    const wrote = sum(rounds.map((item) => of(item.drafts, name)?.tokens));
    const agreed = sum(rounds.filter((item) => item.winner === name).map((item) => of(item.drafts, name)?.tokens));
    return node("tr", {}, named(name),
      cell(number(drafting, 2), bar(drafting / longest, name)), cell(number(verifying, 2), bar(verifying / longest, name)),
      cell(String(wrote)), cell(String(agreed)),
      ...["draft", "verify"].flatMap((phase) => ["read", "reused"].map((what) => cell(String(own(phase, name, what))))));
  });
  rows.push(node("tr", {}, head("by the clock", "row"), cell(number(wall("draft"), 2)), cell(number(wall("verify"), 2)), ...Array.from({ length: 6 }, () => cell(""))));
  part("costs").append(table("By phase and member: seconds, and tokens of each member's own", [head("member", "col", "words"),
    "drafting, s", "scoring, s", "drafted", "agreed", "read to draft", "found in cache", "read to score", "found in cache "], rows));
}

function all() {
  part("all").append(folded(`Show ${count(rounds.length, "round")} as a table`, () =>
    table("Rounds", ["round", head("author", "col", "words"), head("segment", "col", "words"), "total", "margin", "dissent", "seconds"], rounds.map((item) =>
      node("tr", {}, head(String(item.round), "row"), node("td", { class: "words" }, badge(item.winner), visible(item.winner)), words(item.text),
        ...[of(item.totals, item.winner), item.margin, item.dissent].map((value) => cell(number(value))), cell(number(sum(Object.values(item.seconds ?? {})), 2)))))));
}

// --- one round ------------------------------------------------------------------------------------------------------

function choose(at, focus = false) {
  const segments = part("answer").children;
  if (at < 0 || at >= rounds.length) return;
  const old = segments[chosen];
  old?.setAttribute("aria-selected", "false");
  old?.setAttribute("tabindex", "-1");
  segments[at].setAttribute("aria-selected", "true");
  segments[at].setAttribute("tabindex", "0");
  if (focus) segments[at].focus();
  const first = chosen < 0;
  chosen = at;
  mark?.(at + 1);
  detail(rounds[at]);
  part("back").disabled = at === 0;
  part("on").disabled = at === rounds.length - 1;
  if (!first) part("status").textContent = `Round ${rounds[at].round} of ${rounds.length}. ${outcome(rounds[at])}`;
}

// --- events -------------------------------------------------------------------------------------------------------

const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

function listen() {
  const within = (at) => Math.min(rounds.length - 1, Math.max(0, at));
  part("answer").addEventListener("click", (event) => {
    const segment = event.target.closest(".segment");
    if (segment) choose(Number(segment.dataset.at), true);
  });
  part("answer").addEventListener("focusin", (event) => choose(Number(event.target.closest(".segment")?.dataset.at ?? -1)));
  part("answer").addEventListener("keydown", (event) => {
    if (!(event.key in MOVES) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    choose(within(chosen + MOVES[event.key]), true);
  });
  part("back").addEventListener("click", () => choose(chosen - 1));
  part("on").addEventListener("click", () => choose(chosen + 1));
  part("download").addEventListener("click", download);
}

// The data that the page was made from; Trace.load reads it.
function download() {
  const address = URL.createObjectURL(new Blob([part("run").textContent], { type: "application/json" }));
  node("a", { href: address, download: "run.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function themes() {
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (wish.matches ? "dark" : "light")) === "dark";
  const label = () => (part("theme").textContent = dark() ? "Light" : "Dark");
  part("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    label();
  });
  wish.addEventListener("change", label);
  label();
}

header();
legend();
answer();
const mark = weights();
left();
thoughts(rounds, part("thoughts"));
part("thoughts-part").hidden = !part("thoughts").children.length;
costs();
all();
listen();
themes();
for (const id of ["main", "theme", "download"]) part(id).hidden = false;
choose(0);
