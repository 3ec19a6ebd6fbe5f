// Maps: lines from the cell under the pointer; buttons and dragging zoom and move the cells, while the axes and the scale bar
// stay in place and get the labels of what is visible.
for (const map of document.querySelectorAll("svg.map:not([data-zoom])")) {
  const make = (name, attributes, text = "") => {
    const node = document.createElementNS(map.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  const cells = map.querySelector(".cells"), axes = map.querySelector(".axes"), labels = [...axes.childNodes];
  const [left, top, width, height] = cells.dataset.frame.split(" ").map(Number);
  const [south, west, north, east] = cells.dataset.bounds.split(" ").map(Number);
  const degrees = cells.dataset.unit === "°", metres = (north - south) * width / height * (degrees ? 111195 : 1);
  const frame = { x: left, y: top, width, height }, id = `map-frame-${document.querySelectorAll("svg.map[data-zoom]").length}`;
  const clip = make("clipPath", { id }), plot = make("g", { "clip-path": `url(#${id})` });
  const lines = make("path", { class: "links" }), bar = document.createElement("p");
  clip.append(make("rect", frame));
  cells.before(clip, plot);
  // An empty place of the map can be dragged, too.
  plot.append(make("rect", { ...frame, fill: "transparent" }), cells);
  cells.append(lines);
  for (const kind of ["pointermove", "pointerdown", "pointerleave"]) {
    map.addEventListener(kind, (event) => lines.setAttribute("d", event.target.dataset.lines ?? ""));
  }

  const stepOf = (span, about) => {
    const power = 10 ** Math.floor(Math.log10(span / about));
    return power * [1, 2, 5, 10].find((factor) => power * factor >= span / about * 0.999);
  };
  const ticks = (low, high, about) => {
    const step = stepOf(high - low, about), digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
    const format = { minimumFractionDigits: digits, maximumFractionDigits: digits }, found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) {
      found.push([(at * step - low) / (high - low), (at * step).toLocaleString("en", format).replace("-", "−") + cells.dataset.unit]);
    }
    return found;
  };
  const drawAxes = () => {
    const between = (low, high, share) => low + (high - low) * share;
    const up = (share) => between(north, south, (view[1] + view[3] * share - top) / height);
    const right = (share) => between(west, east, (view[0] + view[2] * share - left) / width);
    const bottom = top + height, parts = [make("path", { class: "axis", d: `M${left},${top}V${bottom}H${left + width}` })];
    for (const [share, label] of ticks(up(1), up(0), 4)) {
      const y = bottom - height * share;
      parts.push(make("path", { class: "axis", d: `M${left - 4},${y}H${left}` }),
        make("text", { class: "tick", x: left - 7, y: y + 4, "text-anchor": "end" }, label));
    }
    for (const [share, label] of ticks(right(0), right(1), Math.max(1, Math.floor(width / 80)))) {
      const x = left + width * share;
      parts.push(make("path", { class: "axis", d: `M${x},${bottom}V${bottom + 4}` }),
        make("text", { class: "tick", x, y: bottom + 17, "text-anchor": "middle" }, label));
    }
    const seen = metres * view[2] / width, length = stepOf(seen, 6), end = left + width * length / seen;
    const [number, unit] = !degrees ? [length, ""] : length >= 1000 ? [length / 1000, " km"] : [length, " m"];
    parts.push(make("path", { class: "baseline", d: `M${left},${bottom + 32}H${end}` }),
      make("text", { class: "tick", x: end + 6, y: bottom + 36 }, number.toLocaleString("en", { maximumSignificantDigits: 3 }) + unit));
    axes.replaceChildren(...parts);
  };

  const home = [left, top, width, height], buttons = [];
  let view = home, from = null;
  const show = (next) => {
    const inside = (at, size, start, all) => Math.min(Math.max(at, start), start + all - size);
    view = [inside(next[0], next[2], left, width), inside(next[1], next[3], top, height), next[2], next[3]];
    const whole = view[2] >= width;
    cells.setAttribute("transform", `translate(${left},${top}) scale(${width / view[2]}) translate(${-view[0]},${-view[1]})`);
    map.dataset.zoom = width / view[2];
    map.classList.toggle("enlarged", !whole);
    if (whole) axes.replaceChildren(...labels);
    else drawAxes();
    for (const [button, possible] of buttons) button.disabled = !possible();
  };
  const zoom = (factor) => {
    const share = Math.min(1, Math.max(1 / 16, view[2] / width / factor));
    show([view[0] + (view[2] - width * share) / 2, view[1] + (view[3] - height * share) / 2, width * share, height * share]);
  };
  const move = (x, y) => show([view[0] + x * view[2] / 4, view[1] + y * view[3] / 4, view[2], view[3]]);
  const enlarged = () => view[2] < width;
  for (const [name, text, act, possible] of [
    ["Zoom in", "Zoom in", () => zoom(2), () => view[2] > width / 15],
    ["Zoom out", "Zoom out", () => zoom(0.5), enlarged],
    ["Whole map", "Whole map", () => show(home), enlarged],
    ["Move left", "←", () => move(-1, 0), () => view[0] > left],
    ["Move up", "↑", () => move(0, -1), () => view[1] > top],
    ["Move down", "↓", () => move(0, 1), () => view[1] + view[3] < top + height - 1e-6],
    ["Move right", "→", () => move(1, 0), () => view[0] + view[2] < left + width - 1e-6],
  ]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.ariaLabel = button.title = name;
    button.addEventListener("click", act);
    buttons.push([button, possible]);
    bar.append(button);
  }
  bar.className = "zoom";
  bar.append("or drag the enlarged map");
  map.after(bar);
  map.addEventListener("pointerdown", (event) => {
    if (!enlarged() || !plot.contains(event.target)) return;
    from = [event.clientX, event.clientY, ...view];
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", (event) => {
    if (!from) return;
    const scale = map.viewBox.baseVal.width / map.clientWidth * view[2] / width;
    show([from[2] - (event.clientX - from[0]) * scale, from[3] - (event.clientY - from[1]) * scale, view[2], view[3]]);
  });
  for (const kind of ["pointerup", "pointercancel"]) map.addEventListener(kind, () => { from = null; });
  show(home);
}
