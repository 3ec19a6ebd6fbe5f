// Polls the state of the run folders once a second and draws it. All content is inserted as text, never as markup.
// Only changed nodes are updated, so that focus, selection and scroll position are kept.
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

function patch(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  patchChildren(old, [...fresh.childNodes]);
}

// Children with a key are matched by their key, all others by their position.
function patchChildren(parent, wanted) {
  const keys = new Set(wanted.map((child) => child.dataset?.key)), known = new Map();
  for (const child of [...parent.children].filter((one) => one.dataset.key))
    if (keys.has(child.dataset.key)) known.set(child.dataset.key, child);
    else child.remove();
  wanted.forEach((fresh, place) => {
    const here = parent.childNodes[place] ?? null, key = fresh.dataset?.key;
    const old = key ? known.get(key) : here?.dataset?.key ? null : here;
    if (old !== here || !old) parent.insertBefore(old ?? fresh, here);
    if (old) patch(old, fresh);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
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

function plain(number) { return Number.isFinite(number) ? Number(number.toPrecision(3)).toLocaleString("en") : "not a number"; }

function stateOf(party) {
  if (party.state === "running" && party.silent > SILENT_AFTER) return ["silent", `silent for ${duration(party.silent)}`];
  if (party.waiting?.length) return ["waiting", "waiting"];
  return [party.state, party.state];
}

function phases(party) {
  const last = party.phases.length - 1;
  const running = party.state === "running";
  const called = (name, current) => ({
    wait: current ? "waiting while the others train" : "waited for the others",
    serve: current ? "ready for predictions" : "served predictions",
  })[name] ?? name;
  return make("ol", { class: "phases" }, ...party.phases.map((phase, place) => make(
    "li", place === last && running ? { class: "now", "aria-current": "step" } : {},
    `${called(phase.name, place === last && running)} ${duration(phase.seconds)}`)));
}

function linking(party) {
  if (party.state !== "running") return [];
  const lists = Object.entries(party.linking ?? {}).filter(([, list]) => list.done < list.total);
  return lists.map(([name, { done, total, seconds }]) => {
    const words = [`linking ${name}: ${done.toLocaleString("en")} of ${total.toLocaleString("en")} records`];
    if (done) words.push(`about ${duration((seconds / done) * (total - done))} left`);
    return make("div", { "data-key": `linking ${name}` }, make("progress", { max: total, value: done, "aria-label": `linking ${name}` }),
      make("p", { class: "step" }, words.join(" · ")));
  });
}

function result(party) {
  if (party.state !== "done" || !party.result) return null;
  const metrics = Object.entries(party.result.metrics).map(([name, value]) => `${name} ${plain(value)}`).join(", ");
  const report = make("a", { href: `report?run=${encodeURIComponent(party.folder)}` }, "report");
  return make("p", { class: "result", "data-key": "result" }, `${party.result.part} ${metrics}`, ...(party.report ? [" · ", report] : []));
}

function progress(party) {
  const training = party.training;
  if (!training.epochs) return null;
  const total = training.epochs * training.steps_per_epoch, done = training.steps;
  const phase = party.phases.find((one) => one.name === "train");
  const left = phase && done ? (phase.seconds / done) * (total - done) : 0;
  const epoch = Math.floor(done / training.steps_per_epoch) + (party.state === "running");
  const words = [`epoch ${Math.min(training.epochs, epoch)} of ${training.epochs}`,
    `step ${done.toLocaleString("en")} of ${total.toLocaleString("en")}`];
  if (stateOf(party)[0] === "running" && left > 0) words.push(`about ${duration(left)} left`);
  return make("div", { "data-key": "progress" }, make("progress", { max: total, value: done, "aria-label": "training" }),
    make("p", { class: "step" }, words.join(" · ")));
}

function course(values, x, y) {
  let pen = "M", path = "";
  values.forEach((value, step) => {
    if (Number.isFinite(value)) path += `${pen}${x(step).toFixed(1)},${y(value).toFixed(1)}`;
    pen = Number.isFinite(value) ? "L" : "M";
  });
  return path;
}

function curves(party) {
  const history = party.training.history ?? [];
  if (!history.length) return null;
  const lines = { training: history.map((epoch) => epoch.loss), validation: history.map((epoch) => epoch.validation_loss) };
  const all = [...lines.training, ...lines.validation].filter(Number.isFinite);
  const low = all.length ? Math.min(...all) : 0, high = Math.max(...all, low + 1e-9);
  const first = history[0].number, last = history[history.length - 1].number;
  const x = (number) => (last === first ? (LEFT + RIGHT) / 2 : LEFT + (RIGHT - LEFT) * (number - first) / (last - first));
  const y = (value) => BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low);
  const text = (words, place, up, anchor) => make("svg:text", { class: "tick", x: place, y: up, "text-anchor": anchor }, words);
  const [metric, value] = Object.entries(history[history.length - 1].validation)[0] ?? ["loss", null];
  const label = `loss by epoch; validation ${metric} is now ${plain(value)}`;
  const picture = make("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    make("svg:path", { class: "grid", d: `M${LEFT},${TOP}L${RIGHT},${TOP}M${LEFT},${BOTTOM}L${RIGHT},${BOTTOM}` }),
    text(plain(high), LEFT - 6, TOP + 4, "end"), text(plain(low), LEFT - 6, BOTTOM + 4, "end"),
    text(`epoch ${first}`, LEFT, BOTTOM + 18, "start"), text(`${last}`, RIGHT, BOTTOM + 18, "end"),
    text("loss: training (line), validation (dashed)", LEFT, 12, "start"));
  const best = history.findLast((epoch) => epoch.best);
  if (best) picture.append(make("svg:path", { class: "marker", d: `M${x(best.number)},${TOP}V${BOTTOM}` }));
  Object.values(lines).forEach((values, place) => picture.append(make("svg:path", {
    class: place ? "line second" : "line", d: course(values, (step) => x(history[step].number), y) })));
  const width = (RIGHT - LEFT) / Math.max(1, last - first);
  for (const epoch of history) {
    const scores = Object.entries(epoch.validation).map(([name, score]) => `validation ${name} ${plain(score)}`);
    const losses = [`training loss ${plain(epoch.loss)}`, `validation loss ${plain(epoch.validation_loss)}`];
    const left = Math.max(LEFT, x(epoch.number) - width / 2), right = Math.min(RIGHT, x(epoch.number) + width / 2);
    picture.append(make("svg:rect", { class: "hover", x: left, y: TOP, width: right - left, height: BOTTOM - TOP,
      "data-tip": `epoch ${epoch.number}: ${[...losses, ...scores].join(", ")}` }));
  }
  return make("div", { "data-key": "curves" }, picture, make("p", { class: "step" },
    `validation ${metric} ${plain(value)} after epoch ${last}${best ? `; best epoch ${best.number}: ${plain(best.validation[metric])}` : ""}`));
}

function ledger(party) {
  const entries = [...party.ledger].sort((one, other) => other.bytes - one.bytes);
  if (!entries.length) return null;
  const total = entries.reduce((sum, entry) => sum + entry.bytes, 0);
  const short = (name) => name.replace(/^\S+ '(.*)'$/, "$1");
  const rows = entries.map((entry) => make("tr", {},
    make("td", {}, `${entry.phase}: ${entry.kind}, ${short(entry.sender)} → ${short(entry.receiver)}`),
    make("td", {}, entry.messages.toLocaleString("en")), make("td", {}, bytes(entry.bytes))));
  const head = make("tr", {}, ...[`${bytes(total)} transferred`, "messages", "bytes"].map((name) => make("th", { scope: "col" }, name)));
  return make("div", { class: "scroll", tabindex: 0, "data-key": "ledger" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function card(party) {
  const [kind, words] = stateOf(party);
  return make("section", { class: "party", "data-key": party.folder },
    make("header", {}, make("h2", {}, party.party), make("span", { class: "about" }, `${party.role} of ${party.job} · ${party.folder}`),
      make("span", { class: `state ${kind}` }, words)),
    party.error ? make("p", { class: "error", role: "alert", "data-key": "error" }, party.error) : null,
    ...(kind === "waiting" ? party.waiting : []).map((whom) => make("p", { class: "waits" }, `waiting for ${whom}`)),
    phases(party), result(party), ...linking(party), progress(party), curves(party), ledger(party));
}

function cardOrWarning(party) {
  try {
    return card(party);
  } catch {
    return make("section", { class: "party", "data-key": party.folder },
      make("p", { class: "error" }, `The progress of ${party.folder} cannot be shown; it is damaged, or was written by another version.`));
  }
}

function say(words) {
  const note = document.getElementById("note");
  if (note.textContent !== words) note.textContent = words;
}

function headline(states) {
  const many = (kind) => states.filter((state) => state === kind).length;
  const others = ["waiting", "silent"].filter(many).map((kind) => `, ${many(kind)} ${kind}`);
  return `${many("running")} of ${states.length} running${others.join("")}`;
}

async function look() {
  try {
    const found = await (await fetch("state", { cache: "no-store" })).json();
    patchChildren(document.getElementById("parties"), found.map(cardOrWarning));
    say(found.length ? headline(found.map((party) => stateOf(party)[0])) : "No party has written its progress here yet.");
  } catch {
    say("The board has stopped; restart it with: fedsim runs --live");
  }
  setTimeout(look, EVERY);
}

look();
