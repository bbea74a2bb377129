// Answers the mouse and the keys: zoom, move, hover, choose, search.

const byId = (id) => document.getElementById(id);
const tip = byId('tip'), side = byId('side');

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}
function resize() {
  const box = byId('view').getBoundingClientRect(), dense = window.devicePixelRatio || 1, top = view.top;
  Object.assign(view, {width: Math.max(box.width, kGutter + 40), height: box.height});
  for (const each of [canvas, marks]) {
    each.width = Math.round(view.width * dense);
    each.height = Math.round(view.height * dense);
    each.getContext('2d').setTransform(dense, 0, 0, dense, 0, 0);
  }
  if (view.fits) fitRows();
  scrollTo(top);
  draw();  // at once: a canvas of another size is empty
}

// ---- Where we look ----
function show(from, to) {
  const least = 20, most = whole * 1.02;
  const span = Math.min(Math.max(to - from, least), most), middle = (from + to) / 2;
  view.from = Math.min(Math.max(middle - span / 2, -0.01 * whole), Math.max(whole * 1.01 - span, -0.01 * whole));
  view.to = view.from + span;
  redraw();
}
function zoom(factor, x = kGutter + (view.width - kGutter) / 2) {
  const time = timeAt(x);
  show(time - (time - view.from) * factor, time + (view.to - time) * factor);
}
const shift = (pixels) => show(view.from + pixels / scale(), view.to + pixels / scale());
function scrollTo(top) {
  view.top = Math.max(0, Math.min(top, view.bottom - (view.height - kTop) + 12));
  redraw();
}
function heighten(by) {
  const middle = (view.top + (view.height - kTop) / 2) / Math.max(view.bottom, 1);
  view.unit = Math.min(Math.max(view.unit + by, 5), 48);
  view.fits = false;
  layOut();
  scrollTo(middle * view.bottom - (view.height - kTop) / 2);
}
function fit() {
  view.fits = true;
  fitRows();
  show(-0.005 * whole, 1.005 * whole);
}
function reveal(item) {
  const from = startOf(item), length = lengthOf(item), span = view.to - view.from;
  if (from < view.from || from + length > view.to || length * scale() < 3) {
    const wanted = Math.min(span, Math.max(length * 12, span / 64, 20));
    show(from + length / 2 - wanted / 2, from + length / 2 + wanted / 2);
  }
  const at = laneOfItem(item);
  if (at && (at.y < view.top || at.y + at.height > view.top + view.height - kTop)) scrollTo(at.y - (view.height - kTop) / 2);
}

// ---- What is under the mouse ----
function itemAt(x, y) {
  const place = y > kTop && x > kGutter ? placeAt(y) : null, at = place && laneAt(place, y);
  if (!at) return null;
  const {lane} = at, near = 2 / scale(), time = timeAt(x);
  let best = -1;
  for (let n = firstBehind(lane, time - near); n < lane.items.length; ++n) {
    const i = lane.items[n], from = lane.table.start[i], to = from + lane.table.length[i];
    if (from > time + near) break;
    if (to < time - near) continue;
    if (from <= time && time < to) {
      best = i;
      break;
    }
    if (best < 0 || lane.table.length[i] > lane.table.length[best]) best = i;
  }
  if (best >= 0) return {kind: at.measured ? 'run' : 'step', at: best};
  if (at !== place.device) return null;
  for (let g = place.row.firstGap; g < place.row.firstGap + place.row.gaps; ++g)
    if (gap.from[g] <= time && time < gap.from[g] + gap.length[g]) return {kind: 'gap', at: g};
  return null;
}
function showTip(x, y, title, facts) {
  tip.replaceChildren(element('b', title), factTable(facts));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, x + 18 + box.width > view.width ? x - box.width - 14 : x + 18)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 16, view.height - box.height - 6))}px`;
}
function titleOf(item) {
  return item.kind === 'gap' ? `computes nothing: ${head.reasons[gap.reason[item.at]]}` : textOf(item);
}
function hover(event) {
  const x = event.offsetX, y = event.offsetY;
  hovered = itemAt(x, y);
  const place = x < kGutter && y > kTop ? placeAt(y) : null;
  if (hovered) showTip(x, y, titleOf(hovered), factsOf(hovered));
  else if (place) showTip(x, y, ranksText(place.row.ranks), rowFacts(place.row));
  else tip.hidden = true;
  canvas.style.cursor = hovered ? 'pointer' : y < kTop && x > kGutter ? 'crosshair' : 'default';
  pointer.x = x > kGutter ? x : -1;
  drawMarks();
}
const pointer = {x: -1};

// ---- The chain behind what is chosen ----
function choose(item) {
  chosen = item;
  chain = item ? chainOf(item) : [];
  fillSide();
  if (!item) redraw();
  drawMarks();
}
function fillSide() {
  const wasHidden = side.hidden;
  side.hidden = !chosen;
  if (chosen) {
    const close = element('button', '\u00d7', 'close');
    close.title = 'Close (Esc)';
    close.onclick = () => choose(null);
    side.replaceChildren(close, element('b', titleOf(chosen)), factTable(factsOf(chosen)), element('h2', 'It waited for'), chainList());
  }
  if (wasHidden !== side.hidden) resize();
}
function chainList() {
  const list = element('ol'), kMost = 200;
  chain.slice(1, kMost).forEach((link, n) => {
    const button = element('button', labelOf(link.at)), line = element('li'), before = chain[n];
    const why = before.kind === 'step' ? head.causes[step.flags[before.at] >> 5] : before.kind === 'run' ? 'the same, as predicted' : head.reasons[gap.reason[before.at]];
    button.append(element('small', `${rankText(step.row[link.at])}, ${seconds(step.start[link.at])} for ${seconds(step.length[link.at])}`), element('small', why));
    button.onclick = () => go(link);
    line.append(button);
    list.append(line);
  });
  if (chain.length > kMost) list.append(element('li', `and ${chain.length - kMost} more`));
  const last = chain[chain.length - 1];
  if (last.kind === 'step') list.append(element('li', head.causes[step.flags[last.at] >> 5]));
  return list;
}
const trail = [];
function go(item) {
  if (chosen) trail.push(chosen);
  choose(item);
  reveal(item);
}
function goBack() {
  const item = trail.pop();
  if (!item) return;
  choose(item);
  reveal(item);
}

// ---- Marks above the steps ----
function outline(item, colour, wide) {
  const at = laneOfItem(item);
  if (!at) return;
  const y = kTop + at.y - view.top, x0 = Math.max(xOf(startOf(item)), kGutter), x1 = Math.min(xOf(startOf(item) + lengthOf(item)), view.width);
  if (y < kTop - at.height || x1 < kGutter) return;
  pen.strokeStyle = colour;
  pen.lineWidth = wide;
  pen.strokeRect(x0 - 0.5, y - 0.5, Math.max(x1 - x0, 2), at.height + 1);
}
// An arrow from the end of a cause to the begin of what waited for it.
function arrow(cause, effect, faded) {
  const a = laneOfItem(cause), b = laneOfItem(effect);
  if (!a || !b) return;
  const x0 = xOf(startOf(cause) + lengthOf(cause)), x1 = xOf(effect.kind === 'gap' ? startOf(effect) + lengthOf(effect) : startOf(effect));
  const y0 = kTop + a.y - view.top + a.height / 2, y1 = kTop + b.y - view.top + b.height / 2;
  if (Math.max(x0, x1) < kGutter || Math.min(x0, x1) > view.width) return;
  const bend = Math.max(14, Math.min(60, Math.abs(x1 - x0) / 2));
  pen.globalAlpha = faded;
  pen.strokeStyle = pen.fillStyle = colours.mark;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.moveTo(x0, y0);
  if (Math.abs(y1 - y0) < 2) pen.lineTo(x1, y1);
  else pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 3, y1);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 6, y1 - 3.5);
  pen.lineTo(x1 - 6, y1 + 3.5);
  pen.fill();
  pen.globalAlpha = 1;
}
function drawMarks() {
  pen.clearRect(0, 0, view.width, view.height);
  if (pointer.x > 0 && !dragged) {
    pen.fillStyle = colours.faint;
    pen.globalAlpha = 0.4;
    pen.fillRect(Math.round(pointer.x), kTop, 1, view.height);
    pen.globalAlpha = 1;
  }
  pen.save();
  pen.beginPath();
  pen.rect(kGutter, kTop, view.width, view.height);
  pen.clip();
  chain.forEach((link, n) => {
    const faded = Math.max(0.25, 1 - n / 40);
    if (n > 0) arrow(link, chain[n - 1], faded);
    pen.globalAlpha = faded;
    if (n > 0) outline(link, colours.mark, 1);
  });
  pen.globalAlpha = 1;
  if (hovered) outline(hovered, colours.text, 1);
  if (chosen) outline(chosen, colours.mark, 2);
  pen.restore();
  if (dragged && dragged.selects) {
    pen.fillStyle = colours.accent;
    pen.globalAlpha = 0.18;
    pen.fillRect(Math.min(dragged.x, dragged.to), kTop - 24, Math.abs(dragged.to - dragged.x), view.height);
    pen.globalAlpha = 1;
  }
}
