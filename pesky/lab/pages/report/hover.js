// Points tell their settings when the pointer, a finger or the keyboard is on them.
(function () {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  function show(event) {
    const point = event.target.closest ? event.target.closest("[data-tip]") : null;
    if (!point) { tip.hidden = true; return; }
    tip.textContent = point.dataset.tip;
    tip.hidden = false;
    const box = point.getBoundingClientRect();
    const left = Math.min(Math.max(4, box.left + 12), window.innerWidth - tip.offsetWidth - 4);
    const above = box.top - tip.offsetHeight - 6;
    tip.style.left = left + "px";
    tip.style.top = (above > 4 ? above : box.bottom + 6) + "px";
  }
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, show);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
})();
