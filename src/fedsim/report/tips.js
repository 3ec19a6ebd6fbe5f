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
