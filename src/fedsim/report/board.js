// Asks once a second what the run folders say and draws it; every word of theirs goes in as text, never as markup.
"use strict";

const EVERY = 1000, SILENT_AFTER = 20;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 410, HEIGHT = 150, LEFT = 48, RIGHT = 400, TOP = 22, BOTTOM = 126;

function make(name, attributes = {}, ...children) {
  const node = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function bytes(number) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (number >= scale) return `${(number / scale).toFixed(1)} ${unit}`;
  return `${number} bytes`;
}

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function plain(number) { return Number(number.toPrecision(3)).toLocaleString("en"); }

function stateOf(party) {
  if (party.state === "running" && party.silent > SILENT_AFTER) return ["silent", `silent for ${duration(party.silent)}`];
  return [party.state, party.state];
}

function phases(party) {
  const last = party.phases.length - 1;
  return make("ol", { class: "phases" }, ...party.phases.map((phase, place) => make(
    "li", place === last && party.state === "running" ? { class: "now", "aria-current": "step" } : {},
    `${phase.name} ${duration(phase.seconds)}`)));
}

function progress(party) {
  const training = party.training;
  if (!training.epochs) return null;
  const total = training.epochs * training.steps_per_epoch, done = training.steps;
  const phase = party.phases.find((one) => one.name === "train");
  const left = phase && done ? (phase.seconds / done) * (total - done) : 0;
  const words = [`epoch ${Math.min(training.epochs, Math.floor(done / training.steps_per_epoch) + 1)} of ${training.epochs}`,
    `step ${done.toLocaleString("en")} of ${total.toLocaleString("en")}`];
  if (party.state === "running" && left > 0) words.push(`about ${duration(left)} left`);
  return make("div", {}, make("progress", { max: total, value: done, "aria-label": "training" }),
    make("p", { class: "step" }, words.join(" · ")));
}

function curves(party) {
  const history = party.training.history ?? [];
  if (!history.length) return null;
  const lines = { training: history.map((epoch) => epoch.loss), validation: history.map((epoch) => epoch.validation_loss) };
  const all = [...lines.training, ...lines.validation].filter(Number.isFinite);
  const low = Math.min(...all), high = Math.max(...all, low + 1e-9);
  const first = history[0].number, last = history[history.length - 1].number;
  const x = (number) => (last === first ? (LEFT + RIGHT) / 2 : LEFT + (RIGHT - LEFT) * (number - first) / (last - first));
  const y = (value) => BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low);
  const text = (words, place, up, anchor) => make("svg:text", { class: "tick", x: place, y: up, "text-anchor": anchor }, words);
  const [metric, value] = Object.entries(history[history.length - 1].validation)[0];
  const said = `loss by epoch; validation ${metric} is now ${plain(value)}`;
  const picture = make("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said },
    make("svg:path", { class: "grid", d: `M${LEFT},${TOP}L${RIGHT},${TOP}M${LEFT},${BOTTOM}L${RIGHT},${BOTTOM}` }),
    text(plain(high), LEFT - 6, TOP + 4, "end"), text(plain(low), LEFT - 6, BOTTOM + 4, "end"),
    text(`epoch ${first}`, LEFT, BOTTOM + 18, "start"), text(`${last}`, RIGHT, BOTTOM + 18, "end"),
    text("loss: training (line), validation (dashed)", LEFT, 12, "start"));
  Object.values(lines).forEach((values, place) => picture.append(make("svg:path", {
    class: place ? "line second" : "line",
    d: `M${values.map((one, step) => `${x(history[step].number).toFixed(1)},${y(one).toFixed(1)}`).join("L")}` })));
  return make("div", {}, picture, make("p", { class: "step" }, `validation ${metric} ${plain(value)} after epoch ${last}`));
}

function ledger(party) {
  const entries = [...party.ledger].sort((one, other) => other.bytes - one.bytes);
  if (!entries.length) return null;
  const total = entries.reduce((sum, entry) => sum + entry.bytes, 0);
  const short = (name) => name.replace(/^\S+ '(.*)'$/, "$1");
  const rows = entries.map((entry) => make("tr", {},
    make("td", {}, `${entry.phase}: ${entry.kind}, ${short(entry.sender)} → ${short(entry.receiver)}`),
    make("td", {}, entry.messages.toLocaleString("en")), make("td", {}, bytes(entry.bytes))));
  const head = make("tr", {}, ...[`${bytes(total)} over the border`, "messages", "bytes"].map((name) => make("th", { scope: "col" }, name)));
  return make("div", { class: "scroll", tabindex: 0 }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function card(party) {
  const [kind, words] = stateOf(party);
  return make("section", { class: "party" },
    make("header", {}, make("h2", {}, party.party), make("span", { class: "about" }, `${party.role} of ${party.job} · ${party.folder}`),
      make("span", { class: `state ${kind}` }, words)),
    party.error ? make("p", { class: "error", role: "alert" }, party.error) : null,
    phases(party), progress(party), curves(party), ledger(party));
}

async function look() {
  const note = document.getElementById("note");
  try {
    const found = await (await fetch("state", { cache: "no-store" })).json();
    const offsets = [...document.querySelectorAll(".scroll")].map((box) => box.scrollTop);
    document.getElementById("parties").replaceChildren(...found.map(card));
    document.querySelectorAll(".scroll").forEach((box, place) => { box.scrollTop = offsets[place] ?? 0; });
    const running = found.filter((party) => party.state === "running").length;
    note.textContent = found.length ? `${running} of ${found.length} at work` : "No party has written anything here yet.";
  } catch {
    note.textContent = "The board has stopped; start it again with fedsim board.";
  }
  setTimeout(look, EVERY);
}

look();
