// Shows the tooltip of a shape under the pointer or finger; without this script the browser shows its own. On a phone,
// folds all sections but the first; a link to a section opens it.
(() => {
  const folds = [...document.querySelectorAll(".fold")];
  const reveal = () => {
    const fold = folds.find((one) => `#${one.parentElement.id}` === location.hash);
    if (fold) fold.open = true;
  };
  if (matchMedia("screen and (max-width: 40rem)").matches) folds.slice(1).forEach((fold) => { fold.open = false; });
  reveal();
  addEventListener("hashchange", reveal);
  addEventListener("beforeprint", () => folds.forEach((fold) => { fold.open = true; }));
  const box = document.createElement("div");
  box.className = "tip";
  box.hidden = true;
  document.body.append(box);
  for (const title of document.querySelectorAll("svg * > title")) {
    title.parentElement.dataset.tip = title.textContent;
    title.remove();
  }
  const show = (event) => {
    const shape = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    box.hidden = !shape;
    if (!shape) return;
    box.textContent = shape.dataset.tip;
    const { width, height } = box.getBoundingClientRect();
    const left = Math.min(Math.max(8, event.clientX - width / 2), document.documentElement.clientWidth - width - 8);
    const above = event.clientY - height - 14;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${above > 8 ? above : event.clientY + 18}px`;
  };
  for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, show);
  for (const kind of ["scroll", "keydown"]) document.addEventListener(kind, () => { box.hidden = true; }, true);
})();

// Maps: lines from the cell under the pointer, zoom buttons below, and dragging where a map is enlarged.
for (const map of document.querySelectorAll("svg.map")) {
  const whole = map.viewBox.baseVal, home = [whole.x, whole.y, whole.width, whole.height], bar = document.createElement("p");
  let view = [...home], from = null;
  const lines = map.appendChild(document.createElementNS(map.namespaceURI, "path"));
  lines.setAttribute("class", "links");
  for (const kind of ["pointermove", "pointerdown", "pointerleave"]) {
    map.addEventListener(kind, (event) => lines.setAttribute("d", event.target.dataset.lines ?? ""));
  }
  const show = (next) => {
    const [left, top, width, height] = next, inside = (at, size, start, all) => Math.min(Math.max(at, start), start + all - size);
    view = [inside(left, width, home[0], home[2]), inside(top, height, home[1], home[3]), width, height];
    map.setAttribute("viewBox", view.join(" "));
    map.classList.toggle("enlarged", width < home[2]);
  };
  const zoom = (factor) => {
    const width = Math.min(home[2], Math.max(home[2] / 16, view[2] / factor)), height = width * home[3] / home[2];
    show([view[0] + (view[2] - width) / 2, view[1] + (view[3] - height) / 2, width, height]);
  };
  for (const [name, act] of [["Zoom in", () => zoom(2)], ["Zoom out", () => zoom(0.5)], ["Whole map", () => show(home)]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", act);
    bar.append(button);
  }
  bar.className = "zoom";
  map.after(bar);
  map.addEventListener("pointerdown", (event) => {
    if (view[2] >= home[2]) return;
    from = [event.clientX, event.clientY, ...view];
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", (event) => {
    if (!from) return;
    const scale = view[2] / map.clientWidth;
    show([from[2] - (event.clientX - from[0]) * scale, from[3] - (event.clientY - from[1]) * scale, view[2], view[3]]);
  });
  for (const kind of ["pointerup", "pointercancel"]) map.addEventListener(kind, () => { from = null; });
}
