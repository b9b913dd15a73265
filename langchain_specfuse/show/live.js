"use strict";
// Asks the server that this page came from, and draws the rounds of the answer as they come. Helpers are in page.js, the
// conversation is in talk.js.

const shell = JSON.parse(part("shell").textContent); // the page of a saved run, without the run
const STRUCK_MS = 8000; // for so long refused drafts are shown under their replacement,
const MOST = 4; // at most so many
const isTouched = matchMedia("(pointer: coarse)").matches; // focus on the field would open a keyboard over the answer
let key = "", model = null, asking = null, unsaid = "";

const lost = () => { throw new Error("the server cannot be reached"); };

// Set only when it changes, because screen readers read it out.
function tell(text) {
  if (part("state").textContent !== text) part("state").textContent = text;
}

// A response without an error. While the models load, it waits.
async function request(path, body) {
  const headers = body ? { "content-type": "application/json" } : {};
  // Headers are bytes: the key goes as UTF-8.
  if (key) headers.authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}`;
  const options = { method: body ? "POST" : "GET", headers, body: JSON.stringify(body), signal: asking?.signal };
  for (;;) {
    const response = await fetch(path, options).catch(lost);
    if (response.ok) return response;
    if (response.status === 401) {
      part("unlock").hidden = false;
      part("key").focus();
      throw new Error(key ? "this API key is wrong" : "this server needs an API key");
    }
    const { error } = await response.json().catch(() => ({ error: { message: `the server answered with status ${response.status}` } }));
    if (error.code !== "loading") throw new Error(error.message);
    tell("The models are loading; the answer begins when they are ready.");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

// Who answers here.
async function connect() {
  [model] = (await (await request("v1/models")).json()).data;
  members.splice(0, members.length, ...model.specfuse.members);
  part("unlock").hidden = true;
  part("key").value = "";
}

async function greet() {
  try {
    await connect();
  } catch (error) {
    tell(`Not connected: ${visible(error.message)}.`);
    return;
  }
  part("words").focus();
  tell(isTouched ? "" : "Enter asks, Shift+Enter begins a new line, Escape stops.");
  if (!run.question) introduce();
}

// The rounds of a stream of events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read().catch(lost);
    if (done) lost();
    const all = (rest + value).split("\n\n");
    rest = all.pop();
    for (const data of all.map((event) => event.slice("data: ".length))) {
      if (data === "[DONE]") return;
      const item = JSON.parse(data);
      if (item.error) throw new Error(item.error.message);
      yield item;
    }
  }
}

async function ask(event) {
  event.preventDefault();
  const question = part("words").value;
  if (asking || !question.trim()) return;
  begin(question);
  try {
    await connect();
    const body = { model: model.id, messages: messages(), stream: true };
    for await (const round of events(await request("v1/specfuse/rounds", body))) add(round);
  } catch (error) {
    run.error = asking.signal.aborted ? "you stopped it" : error.message;
    if (!rounds.length) part("words").value ||= question;
  }
  end();
}

function begin(question) {
  asking = new AbortController();
  append(question);
  document.title = question;
  part("words").value = "";
  if (isTouched) part("words").blur();
  tell("The first text is being written.");
  busy(true);
  draw(0);
  if (talk.length > 1) part("shown").scrollIntoView();
}

// The newest round is chosen, unless the reader looks at one.
function add(round) {
  const follows = chosen === rounds.length - 1 && !part("run-part").contains(document.activeElement);
  const watched = !rounds.length || isInView(latest());
  rounds.push(round);
  draw(rounds.length - 1);
  strike(round);
  if (follows) {
    show(rounds.length - 1);
    part("answer").scrollTop = part("answer").scrollHeight;
    if (watched) latest().scrollIntoView({ block: "nearest" });
  }
  tell("");
  say(round.text);
  report(rounds.length - 1);
}

// For a moment, the drafts that checks refused stand struck out under the segment that took their place.
function strike(round) {
  const lines = new Map(); // a line -> how often it came
  let { withdrawn = "" } = round; // the end of what was held back before the drafts
  for (const one of list(round.rejected).filter((one) => !one.is_shown)) {
    const { member, check, reason } = one;
    const { all, stands, takenBack } = standing(one, round.withdrawn);
    if (takenBack) withdrawn = "";
    const line = JSON.stringify([member, all.slice(0, stands), all.slice(stands), `${check}: ${reason}`]);
    lines.set(line, (lines.get(line) ?? 0) + 1);
  }
  const made = [...lines].map(([line, times]) => stricken(...JSON.parse(line), times));
  if (withdrawn) made.push(node("span", {}, "✗ withdrawn before it was shown: ", node("del", {}, visible(withdrawn))));
  if (made.length > MOST) made.splice(MOST - 1, Infinity, node("span", {}, `and ${made.length - MOST + 1} more`));
  if (!made.length) return;
  const remark = note("struck", ...made);
  part("answer").lastElementChild.append(remark);
  setTimeout(() => remark.remove(), STRUCK_MS);
}

function stricken(member, before, text, why, times) {
  const name = node("bdi", {}, visible(member));
  const draft = node("bdi", {}, visible(before), node("del", {}, visible(text)));
  const what = text ? ["✗ ", name, ": ", draft] : ["✗ a draft of ", name, ", whose text is not shown here"];
  return node("span", {}, ...what, times > 1 ? ` (${times} times)` : "", " ", node("bdi", { class: "small" }, visible(why)));
}

// For screen readers: what checks refused in a round, and who left.
function report(at) {
  const refusals = list(rounds[at].rejected).map((one) => `a check refused a draft of ${visible(one.member)}: ${visible(one.reason)}`);
  const { before, after } = takeovers(at);
  const all = [...new Set([...refusals, before, after])].filter(Boolean);
  if (all.length) part("news").textContent = `Round ${rounds[at].round}: ${all.join("; ")}.`;
}

// The element to keep in view: with two columns the newest segment, with one column the details of the newest round.
function latest() {
  return matchMedia("(max-width: 63.99rem)").matches ? part("round-head") : part("answer").lastElementChild;
}

// A reader who scrolled elsewhere stays there.
function isInView(shown) {
  const { top, bottom } = shown.getBoundingClientRect();
  return bottom > 0 && top < Math.min(innerHeight, part("ask").getBoundingClientRect().top); // the form covers the rest
}

function end() {
  asking = null;
  busy(false);
  draw(rounds.length);
  whole();
  say("", true);
  tell(run.error ? "" : "The answer is complete.");
}

function busy(on) {
  writing = on;
  const [now, before] = on ? [part("stop"), part("go")] : [part("go"), part("stop")];
  now.hidden = false;
  if (document.activeElement === before) (on || isTouched ? now : part("words")).focus();
  before.hidden = true;
  part("anew").hidden = on || !talk.length;
  for (const button of part("talk").querySelectorAll(".exchange button")) button.disabled = on;
  part("answer").setAttribute("aria-busy", on);
  part("run-part").classList.toggle("writing", on);
}

// For screen readers: sentences, as they are complete.
function say(text, last = false) {
  unsaid += text;
  const ends = [...unsaid.matchAll(/[.!?](?=\s)|[\n。！？]/g)];
  const length = last ? unsaid.length : 1 + (ends.at(-1)?.index ?? -1);
  if (length) part("status").textContent = visible(unsaid.slice(0, length));
  unsaid = unsaid.slice(length);
}

// What Trace.html would make of this run.
function page() {
  const data = JSON.stringify(run).replace(/[^ -~]|[<>&]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  const text = (raw) => visible(raw).replace(/[^\0-~]|[<>&"']/gu, (c) => `&#${c.codePointAt(0)};`);
  const parts = { title: text(run.question.trim()), run: data, answer: text(rounds.map((round) => round.text).join("")) };
  return shell.replace(/\{\{([a-z]+)\}\}/g, (_, name) => parts[name]);
}

part("take").append(node("button", { type: "button", id: "page" }, "Download page"));
part("page").addEventListener("click", () => save("run.html", "text/html", page()));
part("ask").addEventListener("submit", ask);
part("stop").addEventListener("click", () => asking.abort());
part("words").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) ask(event);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) asking?.abort();
});
part("anew").addEventListener("click", anew);
part("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  key = part("key").value;
  greet();
});
greet();
