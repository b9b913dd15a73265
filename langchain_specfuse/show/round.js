"use strict";
// One round in detail: outcome, what checks refused, and costs; in a vote also drafts with votes and scores, and weights. Helpers are in page.js.

function outcome(item) {
  const won = visible(item.winner);
  if (!isVote(item)) return `${won} wrote it${list(item.rejected).length ? " after what checks refused" : ""}.`;
  if (!names(item.scores).length && list(item.rejected).length) return `${won} wrote it; no other draft passed the checks.`;
  if (!names(item.scores).length) return `${won} wrote it; all drafts were the same, so there was no vote.`;
  const divided = item.dissent === undefined ? "" : `, dissent ${number(item.dissent, 2)}`;
  const second = item.runner_up ? ` over ${visible(item.runner_up)}` : "";
  return `${won} won by ${number(item.margin)}${second}${divided}.`;
}

function detail(item) {
  const made = document.createDocumentFragment();
  made.append(node("p", {}, outcome(item)));
  if (item.finish) made.append(node("p", {}, `The answer ends here: ${of(FINISHED, item.finish) ?? visible(item.finish)}.`));
  for (const name of names(item.refusals)) made.append(node("p", {}, `${visible(name)} refused to write: ${visible(item.refusals[name])}`));
  if (item.forced) made.append(node("p", {}, "Forced by the format: ", node("code", {}, visible(item.forced))));
  for (const phase of names(item.late)) made.append(node("p", {}, `Late in ${visible(phase)}, so the round went on without: ${list(item.late[phase]).map(visible).join(", ")}.`));
  for (const one of list(item.left)) made.append(node("p", { class: "error" }, departed(one)));
  if (item.withdrawn) made.append(node("p", {}, "Withdrawn before it was shown: ", node("del", {}, visible(item.withdrawn))));
  thoughts([item], made);
  if (isVote(item)) made.append(drafts(item));
  if (list(item.rejected).length) made.append(rejections(item.rejected.map((one) => ({ round: item.round, ...one }))));
  made.append(isVote(item) ? changes(item) : cost(item));
  part("detail").replaceChildren(made);
}

// Where one model wrote alone.
function cost(item) {
  const tokens = count(of(item.drafts, item.winner)?.tokens ?? 0, "token");
  return node("p", { class: "hint" }, `${tokens}, ${number(sum(Object.values(item.seconds ?? {})), 2)} s`);
}

function drafts(item) {
  const judges = names(item.votes).length ? names(item.votes) : names(item.scores);
  const order = names(item.drafts).sort((a, b) => (of(item.totals, b) ?? 0) - (of(item.totals, a) ?? 0) || (b === item.winner) - (a === item.winner));
  const heads = [head("model", "col", "words"), head("draft", "col", "words"), "total",
    ...judges.map((name) => head([badge(name), visible(name), node("span", { class: "small" }, `weight ${number(of(item.weights_before, name), 2)}`)]))];
  const rows = order.map((name) => {
    const draft = item.drafts[name];
    const total = of(item.totals, name);
    const row = node("tr", said(draft) === said(of(item.drafts, item.winner) ?? {}) ? { class: "won" } : {}, named(name), refused(item, name) ? struck(draft.text) : words(draft.text));
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
  const remarks = [];
  if (name === item.winner) remarks.push("✓ won");
  else if (list(item.authors).includes(name)) remarks.push("✓ wrote the same");
  const rejection = refused(item, name);
  if (rejection) remarks.push(`✗ refused by ${visible(rejection.check)}`);
  if (list(item.looped).includes(name) && name !== item.winner) remarks.push("loops: not eligible");
  if (name === item.lead) remarks.push("leads");
  const evidence = of(item.evidence, name);
  if (evidence !== undefined) remarks.push(`evidence for its draft over the lead's: ${number(evidence, 2)}`);
  return remarks.map((text) => node("span", { class: "small" }, text));
}

function changes(item) {
  const shown = members.filter((name) => of(item.weights_before, name) !== undefined || of(item.weights, name) !== undefined || of(item.drafts, name));
  const effort = (name, phase) => number(of(of(item.tokens, phase), name)?.seconds, 2);
  return table("Weights and costs", [head("model", "col", "words"), "reward", "weight before", "after", "tokens", "drafting, s", "scoring, s"],
    shown.map((name) => node("tr", {}, named(name), ...[of(item.rewards, name), of(item.weights_before, name), of(item.weights, name)].map((value) => cell(number(value))),
      cell(String(of(item.drafts, name)?.tokens ?? "–")), cell(effort(name, "draft")), cell(effort(name, "verify")))));
}
