// One tooltip for the page: what stands behind a word. It comes with the pointer or the focus, stays
// while the pointer is on it, and goes with Escape.

import { byId, setText } from "./elements.js";

const GAP = 6;
let owner = null;

export function bindTip() {
  const tip = byId("tip");
  tip.addEventListener("mouseleave", hideTip);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
  });
  addEventListener("scroll", hideTip, { capture: true, passive: true });
}

/** Shows `text` beside `anchor`; `described` is the element whose description it is. */
export function showTip(anchor, text, described = anchor) {
  const tip = byId("tip");
  hideTip();
  setText(tip, text);
  tip.hidden = false;
  const at = anchor.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const below = at.bottom + GAP + size.height < innerHeight;
  tip.style.left = `${Math.max(GAP, Math.min(at.left, innerWidth - size.width - GAP))}px`;
  tip.style.top = `${below ? at.bottom + GAP : at.top - GAP - size.height}px`;
  described.setAttribute("aria-describedby", "tip");
  owner = described;
}

export function hideTip() {
  byId("tip").hidden = true;
  owner?.removeAttribute("aria-describedby");
  owner = null;
}

/** Whether the pointer went from the anchor onto the tip itself. */
export const isTip = (element) => element instanceof Node && byId("tip").contains(element);
