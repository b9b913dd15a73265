"use strict";
// The page of one run. Text of models is shown as text nodes and attributes; it is never parsed as HTML.

const part = (id) => document.getElementById(id);
let run, rounds, members; // the live page shows one run after another, and adds rounds
const DASHES = ["", "dashed", "dotted"];
const FINISHED = { stop: "its author ended it", stop_string: "a stop string appeared", length: "a limit was reached", refusal: "the models refused", check: "a check refused the rest" };
const LEAVES = { exit: "voted out", error: "failed", timeout: "too slow", nan: "returned nonsense", overflow: "its context was full", denied: "refused access", not_found: "not found", budget: "the budget was spent" };
const SHOWN_INSTEAD = 40; // so many characters of what was shown in the place of a refused draft
let chosen = -1;
let writing = false;
let mark = null; // moves the line in the chart of weights, if there is one

function use(other) {
  run = other;
  ({ rounds, members } = run);
  chosen = -1;
}

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

// The member whose draft won. Additional samples of a member are separate drafts.
const wrote = (item) => of(item.samples, item.winner) ?? item.winner;
// Whether there was a choice between drafts. Where one model leads, it writes alone.
const isVote = (item) => names(item.drafts).length > 1;
const list = (value) => value ?? [];
const names = (table) => Object.keys(table ?? {});
const sum = (numbers) => numbers.reduce((a, b) => a + (b ?? 0), 0);
const number = (value, digits = 3) => (typeof value === "number" ? value.toFixed(digits) : "–");
const count = (many, one) => `${many} ${one}${many === 1 ? "" : "s"}`;
const said = (draft) => JSON.stringify([draft.text, !!draft.ended]);
const kind = (name) => (members.includes(name) ? `m${members.indexOf(name) % 8}` : "");
const label = (name) => String(members.indexOf(name) + 1 || "·");
const badge = (name) => node("span", { class: `badge ${kind(name)}`, "aria-hidden": "true" }, label(name));
const head = (text, scope = "col", cls = "") => node("th", { scope, class: cls }, ...[text].flat());
const cell = (...children) => node("td", {}, ...children);
const refused = (item, name) => list(item.rejected).find((one) => one.member === name && one.text === of(item.drafts, name)?.text);
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

// A refused draft after what was held back, how much of that stands, and what was withdrawn with it. A check that has judged some of the held back text has less of it; drafts after the cut do not follow what was withdrawn.
function standing({ text, kept = 0, held_back = "" }, withdrawn = "") {
  const before = held_back && withdrawn.endsWith(held_back) ? withdrawn : held_back;
  const takenBack = text && !kept && before.endsWith(withdrawn) ? withdrawn : "";
  return { all: text && before + text, stands: before.length - takenBack.length + kept, takenBack };
}

// What checks refused: the beginning that was kept, and the rest struck out. An endpoint may leave the text out.
function struck(text, kept = 0, author = "") {
  const made = node("td", { class: "words", dir: "auto" });
  if (author) made.append(badge(author), node("span", { class: "unseen" }, `${visible(author)}: `));
  if (!text) made.append(node("span", { class: "small" }, "its text is not shown here"));
  else made.append(visible(text.slice(0, kept)), node("span", { class: "unseen" }, " refused: "), node("del", {}, visible(text.slice(kept))));
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
  const tokens = sum(agreed().map((one) => one.tokens));
  const rejections = sum([run, ...rounds].map((item) => list(item.rejected).length));
  const ending = writing ? "more is to come" : last ? of(FINISHED, last.finish) ?? "it is incomplete" : "no segment was agreed";
  part("summary").textContent = `${count(rounds.length, "round")}, ${count(members.length, "model")}, ${count(tokens, "token")} in ${seconds.toFixed(1)} s; ${ending}${rejections ? `; checks refused ${count(rejections, "draft")}` : ""}`;
  (last ? part("keys") : part("run-part")).before(part("error")); // where the text ends
  part("error").hidden = !run.error;
  part("error").textContent = `${last ? "The answer broke off" : "There is no answer"}: ${visible(run.error)}`;
}

// The agreed drafts that still stand. A round may withdraw text that earlier rounds agreed.
function agreed() {
  const standing = [];
  let length = 0;
  for (const item of rounds) {
    length -= (item.withdrawn ?? "").length;
    while (standing.length && standing.at(-1).end > length) standing.pop();
    length += (item.segment ?? item.text).length + (item.forced ?? "").length;
    standing.push({ end: length, author: wrote(item), tokens: of(item.drafts, item.winner)?.tokens ?? 0 });
  }
  return standing;
}

// The tokens of a member's drafts, with those that checks refused.
function drafted(item, name) {
  const again = list(item.rejected).filter((one) => one.member === name && one !== refused(item, name));
  const kept = again.some((one) => one.kept) ? of(item.drafts, name)?.tokens ?? 0 : 0;
  return (of(item.drafts, name)?.tokens ?? 0) + sum(again.map((one) => one.tokens)) - kept;
}

function legend() {
  const last = rounds.at(-1)?.weights;
  part("legend").replaceChildren();
  const pieces = released().flat();
  const length = (all) => sum(all.map((piece) => piece[1].length));
  for (const name of members) {
    const weight = of(last, name);
    const away = hasLeft(name) ? "left" : "in reserve";
    const outcomes = [];
    if (rounds.some(isVote)) {
      outcomes.push(`won ${count(rounds.filter((item) => wrote(item) === name).length, "round")}`, weight === undefined ? away : `weight ${number(weight, 2)}`);
    } else {
      const share = length(pieces.filter((piece) => piece[0] === name)) / Math.max(1, length(pieces));
      if (name === rounds[0]?.lead) outcomes.push("leads");
      if (share) outcomes.push(share === 1 ? "wrote the whole text" : `wrote ${Math.round(100 * share)}% of the text`);
      if (!share && name !== rounds[0]?.lead || hasLeft(name)) outcomes.push(away);
    }
    part("legend").append(node("li", {}, badge(name), node("bdi", {}, visible(name)), `: ${outcomes.join(", ")}`));
  }
  if (rounds.some((item) => item.forced)) {
    part("legend").append(node("li", {}, node("span", { class: "badge", "aria-hidden": "true" }, "·"), "forced text: the format leaves no choice"));
  }
}

// A departure in words. The reason may be long, or missing: an endpoint leaves out what a member raised.
function departed(one, most = Infinity) {
  const how = of(LEAVES, one.kind) ?? one.kind ?? "";
  const reason = one.reason ?? "";
  const why = reason.length > most ? `${reason.slice(0, most)}…` : reason;
  return visible(`${one.member} left (${how})${why ? `: ${why}` : ""}`);
}

// Who writes on after a round in which somebody left.
function goingOn(at) {
  const gone = rounds.slice(0, at + 1).flatMap((before) => list(before.left).map((one) => one.member));
  const staying = (all) => [...new Set(all)].filter((name) => !gone.includes(name));
  const writers = names(rounds[at].drafts).map((name) => of(rounds[at].samples, name) ?? name);
  return staying(writers).length ? staying(writers) : staying(names(rounds[at].weights));
}

// Who left in a round, why, and who goes on. A member that drafted in this round left after its text, others before it.
function takeovers(at) {
  const item = rounds[at];
  const leaving = list(item.left);
  if (!leaving.length) return { before: "", after: "" };
  const writers = names(item.drafts).map((name) => of(item.samples, name) ?? name);
  const others = goingOn(at);
  const goOn = others.length ? [`${others.map(visible).join(" and ")} ${others.length > 1 ? "go" : "goes"} on`] : [];
  const said = (all, end) => (all.length ? [...all.map((one) => departed(one, 160)), ...end].join("; ") : "");
  const drafted = (one) => writers.includes(one.member);
  return {
    before: said(leaving.filter((one) => !drafted(one)), goOn),
    after: said(leaving.filter(drafted), item.finish ? [] : goOn),
  };
}

// A remark in a segment. It is no part of the answer: it is not copied with it.
const note = (kind, ...children) => node("span", { class: `note ${kind}`, dir: "auto" }, ...children);

const hasLeft = (name) => rounds.some((item) => list(item.left).some((one) => one.member === name));

// The first characters of these pieces, and the rest.
function cut(pieces, length) {
  const [first, rest] = [[], []];
  for (const [author, text] of pieces) {
    const part = text.slice(0, Math.max(0, length));
    length -= text.length;
    if (part) first.push([author, part]);
    if (part.length < text.length) rest.push([author, text.slice(part.length)]);
  }
  return [first, rest];
}

const joined = (pieces) => pieces.map((piece) => piece[1]).join("");

// The text of each round in pieces with their authors. A round may release text that earlier rounds held back.
// What the format forces, around the segment, has no author.
function released() {
  let held = [];
  return rounds.map((item) => {
    const { text, segment = text, forced = "", withdrawn = "" } = item;
    const author = wrote(item);
    [held] = cut(held, joined(held).length - withdrawn.length);
    for (let at = 0; at <= forced.length; at++) {
      const all = [...held, ["", forced.slice(0, at)], [author, segment], ["", forced.slice(at)]];
      if (!joined(all).startsWith(text)) continue;
      const [now, later] = cut(all, text.length);
      held = later;
      return now.length ? now : [[author, ""]];
    }
    held = [];
    return [[author, text]];
  });
}

// From this round on; the rounds before it are there.
function answer(from) {
  if (!from) part("answer").replaceChildren();
  const pieces = released();
  let before = from ? pieces[from - 1].at(-1)[0] : null;
  for (let at = from; at < rounds.length; at++) {
    const item = rounds[at];
    const shownText = visible(item.text) || (item.ended ? "■" : "…");
    const rejections = list(item.rejected).length;
    const { before: early, after: late } = takeovers(at);
    const more = [rejections ? `checks refused ${count(rejections, "draft")}` : "", early, late].filter(Boolean);
    const name = [`Round ${item.round}, ${item.winner}: ${shownText.trim() || "white space"}`, ...more].join("; ");
    const segment = node("span", { class: "segment", role: "option", tabindex: "-1", "aria-selected": "false", "aria-label": name });
    segment.dataset.at = at;
    for (const [author, text] of pieces[at]) {
      const piece = node("span", { class: author ? `piece ${kind(author)}` : "piece forced" }, visible(text) || shownText);
      if (!text) piece.dataset.empty = ""; // nothing was shown in this round
      if (author !== before) piece.dataset.by = label(author);
      before = author;
      segment.append(piece);
    }
    if (rejections) segment.lastChild.dataset.refused = `✗${rejections}`;
    const how = list(item.left).every((one) => one.kind === "exit") ? "left" : "left failed";
    const place = pieces[at].findIndex(([author]) => author === wrote(item)); // after text that others wrote before
    if (early) segment.insertBefore(note(how, early), segment.children[place] ?? null);
    if (late) segment.append(note(how, late));
    part("answer").append(segment);
  }
}

function weights() {
  const panels = [rounds[0].weights_before ?? rounds[0].weights ?? {}, ...rounds.map((item) => item.weights ?? {})];
  const lines = members.map((name, at) => ({
    label: label(name), kind: kind(name), dash: DASHES[at % 3], left: hasLeft(name), points: panels.map((panel) => of(panel, name) ?? null),
  }));
  const ranges = members.map((name, at) => {
    const points = lines[at].points.filter((value) => value !== null);
    if (!points.length) return `${name} in reserve`;
    return `${name} from ${number(points[0], 2)} to ${number(points.at(-1), 2)}`;
  });
  const named = (place) => (place ? String(rounds[place - 1].round) : "start");
  const plot = plotted(lines, named, rounds.length, `Voting weights. ${ranges.join("; ")}.`);
  plot.picture.addEventListener("click", (event) => choose(Math.min(rounds.length, Math.max(1, plot.placeAt(event))) - 1));
  part("weights").replaceChildren(plot.picture);
  return plot.mark;
}

function left() {
  const gone = rounds.flatMap((item, at) => list(item.left).map((one) => ({ round: item.round, next: goingOn(at).join(", "), ...one })));
  part("left-part").hidden = !gone.length;
  part("left").replaceChildren(table("Models that left", [...["model", "how", "why", "who went on"].map((text) => head(text, "col", "words")), "round"],
    gone.map((one) => node("tr", {}, named(one.member), words(of(LEAVES, one.kind) ?? one.kind ?? ""), words(one.reason ?? ""), words(one.next), cell(String(one.round))))));
}

function checks() {
  const totals = new Map();
  for (const item of rounds) {
    for (const name of names(item.checks)) {
      const { passed = 0, rejected = 0, redacted = 0 } = of(item.checks, name);
      const before = totals.get(name) ?? [0, 0, 0];
      totals.set(name, [passed, rejected, redacted].map((many, at) => before[at] + many));
    }
  }
  const all = [...rounds.flatMap((item) => list(item.rejected).map((one) => ({ round: item.round, ...one }))), ...list(run.rejected)];
  part("checks-part").hidden = !totals.size && !all.length;
  (rounds.length ? part("whole") : part("run-part")).before(part("checks-part"));
  part("checks").replaceChildren();
  if (all.length) part("checks").append(rejections(all, true));
  const heads = ["passed", "refused", "replaced"].slice(0, [...totals.values()].some((counts) => counts[2]) ? 3 : 2);
  if (totals.size) part("checks").append(table("How often each check was passed", [head("check", "col", "words"), ...heads],
    [...totals].map(([name, counts]) => node("tr", {}, head(visible(name), "row"), ...heads.map((_, at) => cell(String(counts[at])))))));
}

// What was shown in the place of a refused draft: what follows the part of it that was kept.
function replacement(one, shown) {
  if (one.is_shown) return ["shown all the same"];
  const at = rounds.findIndex((item) => item.round >= one.round);
  const later = at < 0 ? [] : shown.slice(at).flat();
  const kept = (one.held_back ?? "") + one.text.slice(0, one.kept);
  const rest = joined(later).startsWith(kept) ? cut(later, kept.length)[1] : later;
  const first = cut(rest, SHOWN_INSTEAD)[0].filter((piece) => piece[1]);
  if (!first.length) return ["nothing"];
  const author = first.find((piece) => piece[0])?.[0] ?? "";
  const more = joined(rest).length > SHOWN_INSTEAD ? "…" : "";
  return [badge(author), visible(joined(first)) + more];
}

function rejections(all, withRound = false) {
  const shown = released();
  const heads = ["refused text", "why", "shown instead"].map((text) => head(text, "col", "words"));
  const made = table("Drafts that checks refused", withRound ? ["round", ...heads] : heads, all.map((one) => {
    const { all: text, stands } = standing(one, rounds.find((item) => item.round === one.round)?.withdrawn);
    const why = node("td", { class: "words", dir: "auto" }, visible(one.reason), node("span", { class: "small" }, visible(one.check)));
    const instead = node("td", { class: "words", dir: "auto" }, ...replacement(one, shown));
    return node("tr", {}, ...(withRound ? [cell(String(one.round))] : []), struck(text, stands, one.member), why, instead);
  }));
  made.classList.add("refusals");
  return made;
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
  const votes = rounds.some(isVote);
  const phases = votes ? ["draft", "verify"] : ["draft"];
  const standing = agreed();
  const wall = (phase) => sum(rounds.map((item) => of(item.seconds, phase)));
  const own = (phase, name, what) => sum(rounds.map((item) => of(of(item.tokens, phase), name)?.[what]));
  const longest = Math.max(1e-9, ...members.map((name) => own("draft", name, "seconds") + own("verify", name, "seconds")));
  const rows = members.map((name) => {
    const [drafting, verifying] = [own("draft", name, "seconds"), own("verify", name, "seconds")];
    const written = sum(rounds.map((item) => drafted(item, name)));
    const stands = sum(standing.filter((one) => one.author === name).map((one) => one.tokens));
    const seconds = [cell(number(drafting, 2), bar(drafting / longest, name)), cell(number(verifying, 2), bar(verifying / longest, name))];
    const read = phases.flatMap((phase) => ["read", "reused"].map((what) => cell(String(own(phase, name, what)))));
    return node("tr", {}, named(name), ...seconds.slice(0, phases.length), cell(String(written)), ...(votes ? [cell(String(stands))] : []), ...read);
  });
  const clock = phases.map((phase) => cell(number(wall(phase), 2)));
  const rest = Array.from({ length: votes ? 6 : 3 }, () => cell(""));
  rows.push(node("tr", {}, head("by the clock", "row"), ...clock, ...rest));
  const heads = votes
    ? ["drafting, s", "scoring, s", "drafted", "agreed", "read to draft", "found in cache", "read to score", "found in cache "]
    : ["writing, s", "written", "read", "found in cache"];
  part("costs").replaceChildren(table("Seconds of each model, and tokens of its own", [head("model", "col", "words"), ...heads], rows));
}

function tables() {
  const votes = rounds.some(isVote);
  const heads = ["round", head("author", "col", "words"), head(votes ? "segment" : "text", "col", "words"), ...(votes ? ["total", "margin", "dissent"] : ["refused"]), "seconds"];
  const counted = (item) => (votes ? [of(item.totals, item.winner), item.margin, item.dissent].map((value) => number(value)) : [String(list(item.rejected).length)]);
  part("table").replaceChildren();
  if (votes) part("table").append(folded("As a table", () =>
    table("Weights after each round", ["round", ...members], rounds.map((item) =>
      node("tr", {}, head(String(item.round), "row"), ...members.map((name) => cell(number(of(item.weights, name)))))))));
  part("all").replaceChildren(folded(`Show ${count(rounds.length, "round")} as a table`, () =>
    table("Rounds", heads, rounds.map((item) =>
      node("tr", {}, head(String(item.round), "row"), node("td", { class: "words" }, badge(item.winner), visible(item.winner)), words(item.text),
        ...[...counted(item), number(sum(Object.values(item.seconds ?? {})), 2)].map((value) => cell(value)))))));
}

// The run with the rounds from this one on.
function draw(from) {
  for (const id of ["run-part", "take"]) part(id).hidden = !rounds.length;
  for (const id of ["table", "whole"]) part(id).hidden = writing;
  if (writing) part("checks-part").hidden = true;
  header();
  legend();
  answer(from);
  part("weights-part").hidden = !rounds.some(isVote);
  part("answer").classList.toggle("alone", !rounds.some(isVote));
  mark = rounds.some(isVote) ? weights() : null;
  if (chosen >= 0) place();
}

// What is shown of a run once it is over.
function whole() {
  left();
  checks();
  part("thoughts").replaceChildren();
  thoughts(rounds, part("thoughts"));
  part("thoughts-part").hidden = !part("thoughts").children.length;
  costs();
  tables();
}

// --- one round ------------------------------------------------------------------------------------------------------

function show(at) {
  const segments = part("answer").children;
  segments[chosen]?.setAttribute("aria-selected", "false");
  segments[chosen]?.setAttribute("tabindex", "-1");
  segments[at].setAttribute("aria-selected", "true");
  segments[at].setAttribute("tabindex", "0");
  chosen = at;
  detail(rounds[at]);
  place();
}

function place() {
  mark?.(chosen + 1);
  part("round-head").textContent = `Round ${rounds[chosen].round} of ${rounds.at(-1).round}`;
  part("back").disabled = chosen === 0;
  part("on").disabled = chosen === rounds.length - 1;
}

function choose(at, focus = false) {
  if (at < 0 || at >= rounds.length) return;
  show(at);
  if (focus) part("answer").children[at].focus();
  part("status").textContent = `Round ${rounds[at].round} of ${rounds.at(-1).round}. ${outcome(rounds[at])}`;
}

// --- events -------------------------------------------------------------------------------------------------------

const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

function listen() {
  const within = (at) => Math.min(rounds.length - 1, Math.max(0, at));
  part("answer").addEventListener("click", (event) => {
    const segment = event.target.closest(".segment");
    if (segment) choose(Number(segment.dataset.at), true);
  });
  part("answer").addEventListener("focusin", (event) => {
    const at = Number(event.target.closest(".segment")?.dataset.at ?? -1);
    if (at !== chosen) choose(at);
  });
  part("answer").addEventListener("keydown", (event) => {
    if (!(event.key in MOVES) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    choose(within(chosen + MOVES[event.key]), true);
  });
  part("back").addEventListener("click", () => choose(chosen - 1));
  part("on").addEventListener("click", () => choose(chosen + 1));
  part("download").addEventListener("click", () => save("run.json", "application/json", JSON.stringify(run)));
}

// As JSON it is what Trace.load reads.
function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  node("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

use(JSON.parse(part("run").textContent));
draw(0);
whole();
listen();
if (rounds.length) show(0);
