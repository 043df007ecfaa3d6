// Which part of a long list is in the document: rows of one height in a box that scrolls. Pure.

const ALL_UP_TO = 80;
const BEYOND = 12;

/** The range of indices to draw, and the heights in pixels that stand for what is left out. */
export function visible(length, rowHeight, scrollTop, boxHeight) {
  if (length <= ALL_UP_TO || !rowHeight) return { first: 0, last: Math.min(length, ALL_UP_TO), above: 0, below: 0 };
  const room = Math.ceil(boxHeight / rowHeight) + 2 * BEYOND;
  const first = Math.max(0, Math.min(Math.floor(scrollTop / rowHeight) - BEYOND, length - room));
  const last = Math.min(length, first + room);
  return { first, last, above: first * rowHeight, below: (length - last) * rowHeight };
}
