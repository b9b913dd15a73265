"use strict";
// A conversation. One run of it is shown with its rounds, each other one as its question and answer. Helpers are in page.js.

const blank = part("run").textContent;
const title = part("question").textContent;
const talk = []; // the runs, the oldest first

// What the models get: the earlier questions and answers, then the new question. An answer that broke off counts as far as it came.
function messages() {
  const earlier = talk.slice(0, -1).filter((one) => spoken(one).trim());
  const turns = earlier.flatMap((one) => [{ role: "user", content: one.question }, { role: "assistant", content: spoken(one) }]);
  return [...turns, { role: "user", content: run.question }];
}

const spoken = (one) => one.rounds.map((item) => item.text).join("").toWellFormed();

// Shows a new run at the end.
function append(question) {
  fold();
  use({ ...JSON.parse(blank), question, members: [...members] });
  talk.push(run);
  part("unlock").before(part("shown"));
  part("asked").textContent = "Your next question";
  part("words").placeholder = "";
}

// The shown run becomes question and answer. One without an answer is dropped.
function fold() {
  if (rounds.length) part("shown").before(exchange(run));
  else if (talk.includes(run)) talk.splice(talk.indexOf(run), 1);
}

function exchange(its) {
  const text = [...part("answer").querySelectorAll(".piece, .note.left")].map((one) => one.cloneNode(true));
  const question = visible(its.question);
  const button = node("button", { type: "button" }, "Show its rounds", node("span", { class: "unseen" }, `: ${question}`));
  const made = node("article", { class: "exchange" },
    node("h2", { class: "question", dir: "auto" }, question),
    node("div", { class: "said", dir: "auto" }, ...text),
    ...(its.error ? [node("p", { class: "error" }, part("error").textContent)] : []),
    node("div", { class: "row" }, node("p", { class: "hint" }, part("summary").textContent), button));
  button.addEventListener("click", () => reopen(made, its));
  return made;
}

function reopen(place, its) {
  fold();
  place.replaceWith(part("shown"));
  use(its);
  document.title = its.question;
  draw(0);
  whole();
  show(rounds.length - 1);
  part("question").focus();
}

function anew() {
  talk.length = 0;
  for (const one of part("talk").querySelectorAll(".exchange")) one.remove();
  use({ ...JSON.parse(blank), members: [...members] });
  document.title = part("question").textContent = title;
  draw(0);
  whole();
  introduce();
  part("asked").textContent = "Your question";
  part("anew").hidden = true;
  part("words").focus();
}

function introduce() {
  part("summary").replaceChildren(members.length > 1 ? "These models answer: " : "This model answers: ", ...members.map((name) => node("span", { class: "member" }, badge(name), visible(name))));
}
