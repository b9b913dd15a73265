"use strict";
// One round in full: its outcome, its drafts with votes and scores, what it did to the weights. The small things are page.js's.

function outcome(item) {
  const won = visible(item.winner);
  if (names(item.drafts).length < 2) return `${won} was the only one to draft.`;
  if (!names(item.scores).length) return `${won} wrote it; there was nothing to choose, so nobody scored.`;
  const divided = item.dissent === undefined ? "" : `, dissent ${number(item.dissent, 2)}`;
  const second = item.runner_up ? ` over ${visible(item.runner_up)}` : "";
  return `${won} won by ${number(item.margin)}${second}${divided}.`;
}

function detail(item) {
  part("round-head").textContent = `Round ${item.round} of ${rounds.length}`;
  const made = document.createDocumentFragment();
  made.append(node("p", {}, outcome(item)));
  if (item.finish) made.append(node("p", {}, `The answer ends here: ${of(FINISHED, item.finish) ?? visible(item.finish)}.`));
  if (item.forced) made.append(node("p", {}, "Without a vote, because it had to be so: ", node("code", {}, visible(item.forced))));
  if (item.closed) made.append(node("p", {}, "Closed by hand, because the budget ended first: ", node("code", {}, visible(item.closed))));
  for (const phase of names(item.late)) made.append(node("p", {}, `Late, so the round went on without them (${visible(phase)}): ${list(item.late[phase]).map(visible).join(", ")}.`));
  for (const one of list(item.left)) made.append(node("p", { class: "error" }, `${visible(one.member)} left (${of(LEAVES, one.kind) ?? visible(one.kind ?? "")}): ${visible(one.reason ?? "")}`));
  thoughts([item], made);
  made.append(drafts(item), changes(item));
  part("detail").replaceChildren(made);
}

function drafts(item) {
  const judges = names(item.votes).length ? names(item.votes) : names(item.scores);
  const order = names(item.drafts).sort((a, b) => (of(item.totals, b) ?? 0) - (of(item.totals, a) ?? 0) || (b === item.winner) - (a === item.winner));
  const heads = [head("member", "col", "words"), head("draft", "col", "words"), "total",
    ...judges.map((name) => head([badge(name), visible(name), node("span", { class: "small" }, `weight ${number(of(item.weights_before, name), 2)}`)]))];
  const rows = order.map((name) => {
    const draft = item.drafts[name];
    const total = of(item.totals, name);
    const row = node("tr", said(draft) === said(of(item.drafts, item.winner) ?? {}) ? { class: "won" } : {}, named(name), words(draft.text));
    row.children[0].append(...remarks(item, name));
    if (draft.ended) row.children[1].append(node("span", { class: "small" }, "■ ends the answer"));
    row.append(cell(number(total), bar(total, name)));
    for (const judge of judges) {
      row.append(cell(number(of(of(item.votes, judge), name), 2), node("span", { class: "small" }, `score ${number(of(of(item.scores, judge), name))}`)));
    }
    return row;
  });
  return table("Drafts, with every verifier's vote and score", heads, rows);
}

function remarks(item, name) {
  const told = [];
  if (name === item.winner) told.push("✓ won");
  else if (list(item.authors).includes(name)) told.push("✓ wrote the same");
  if (list(item.looped).includes(name)) told.push("loops: not eligible");
  if (name === item.umpire) told.push("umpire between those who were sure");
  return told.map((text) => node("span", { class: "small" }, text));
}

function changes(item) {
  const who = members.filter((name) => of(item.weights_before, name) !== undefined || of(item.weights, name) !== undefined || of(item.drafts, name));
  const effort = (name, phase) => number(of(of(item.tokens, phase), name)?.seconds, 2);
  return table("What it did to the weights, and what it cost", [head("member", "col", "words"), "reward", "weight before", "after", "tokens", "drafting, s", "scoring, s"],
    who.map((name) => node("tr", {}, named(name), ...[of(item.rewards, name), of(item.weights_before, name), of(item.weights, name)].map((value) => cell(number(value))),
      cell(String(of(item.drafts, name)?.tokens ?? "–")), cell(effort(name, "draft")), cell(effort(name, "verify")))));
}
