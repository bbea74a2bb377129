// Search, stages and microbatches that stand out, the legend, the summary; and the begin of it all.

// ---- What stands out ----
const wanted = {words: [], stage: '', micro: '', shades: null, found: [], at: -1};
let texts = null;  // by instruction, in lower case: made for the first search
function isWanted(o) {
  if (wanted.shades && !wanted.shades.has(one.shade[o])) return false;
  if (wanted.stage !== '' && one.stage[o] !== Number(wanted.stage)) return false;
  if (wanted.micro !== '') {
    const from = one.micro[o], micro = Number(wanted.micro);
    if (micro < from || micro >= from + one.micros[o] || from < 0) return false;
  }
  return wanted.words.every((word) => texts[o].includes(word));
}
function find() {
  wanted.words = byId('search').value.toLowerCase().split(/\s+/).filter((word) => word);
  wanted.stage = byId('stage').value;
  wanted.micro = byId('micro').value;
  const any = wanted.words.length > 0 || wanted.stage !== '' || wanted.micro !== '' || wanted.shades;
  if (wanted.words.length > 0 && !texts)
    texts = Array.from(one.shade, (_, o) => `${one.text(o)} ${one.what[o] >= 0 ? head.names[one.what[o]] : ''} ${head.kinds[one.kind[o]]}`.toLowerCase());
  lit = any ? Uint8Array.from(one.shade, (_, o) => isWanted(o) ? 1 : 0) : null;
  wanted.found = [];
  wanted.at = -1;
  if (lit) for (let s = 0; s < step.count; ++s) if (lit[step.one[s]]) wanted.found.push(s);
  if (lit) wanted.found.sort((a, b) => step.start[a] - step.start[b] || a - b);
  byId('found').textContent = lit ? `${wanted.found.length} found` : '';
  redraw();
}
function nextFound(by) {
  const count = wanted.found.length;
  if (count === 0) return;
  wanted.at = (wanted.at + by + count) % count;
  byId('found').textContent = `${wanted.at + 1} of ${count}`;
  go({kind: 'step', at: wanted.found[wanted.at]});
}

// ---- Head of the page ----
function fillLegend() {
  const used = new Set(one.shade), legend = byId('legend');
  head.shades.forEach((name, shade) => {
    if (!used.has(shade)) return;
    const button = element('button'), swatch = element('i');
    swatch.style.background = `var(--shade${shade})`;
    button.append(swatch, name);
    button.title = `Let only ${name} stand out`;
    button.onclick = () => {
      wanted.shades = wanted.shades && wanted.shades.has(shade) ? null : new Set([shade]);
      for (const each of legend.querySelectorAll('button')) each.classList.toggle('off', wanted.shades !== null && each !== button);
      find();
    };
    legend.append(button);
  });
  const reasons = new Set(gap.reason);
  if (reasons.size > 0) legend.append(element('span', 'waits for'));
  head.reasons.forEach((name, reason) => {
    if (!reasons.has(reason)) return;
    const shown = element('button'), swatch = element('i', undefined, 'gap');
    swatch.style.background = `var(--reason${reason})`;
    shown.append(swatch, name);
    shown.disabled = true;
    legend.append(shown);
  });
}
function fillSummary() {
  const idle = rows.reduce((sum, row) => sum + isIdle(row) * row.ranks.length, 0);
  const ranks = rows.reduce((sum, row) => sum + row.ranks.length, 0), facts = [];
  facts.push([head.steps > 1 ? 'a step' : 'step', seconds(head.step)]);
  if (head.steps > 1) facts.push([`${head.steps} steps`, seconds(head.length)]);
  facts.push(['idle', percent(head.length > 0 && ranks > 0 ? idle / ranks / head.length : 0)]);
  facts.push(['ranks', ranks]);
  if (rows.length < ranks) facts.push(['kinds of ranks', rows.length]);
  if (head.measured) {
    const {steps, length, predicted} = head.measured, by = difference(length, predicted);
    facts.push([`measured, ${steps} step${steps > 1 ? 's' : ''}`, seconds(length)]);
    facts.push(['beside the prediction', by.text || 'none', by.kind]);
    const matched = run.by.size, all = run.of.length;
    if (matched < all) facts.push(['events of these plans', `${matched} of ${all}`]);
  }
  for (const [name, value, kind] of facts) {
    const shown = element('span', `${name} `);
    shown.append(element('b', value, kind));
    byId('summary').append(shown);
  }
}
function fillChoices() {
  for (const [id, numbers] of [['stage', one.stage], ['micro', one.micro]]) {
    const known = [...new Set(numbers)].filter((number) => number >= 0).sort((a, b) => a - b);
    for (const number of known) byId(id).append(new Option(number, number));
    byId(id).parentElement.hidden = known.length < 2;
    byId(id).onchange = find;
  }
}

// ---- Mouse and keys ----
function dragTo(event) {
  const x = event.offsetX, y = event.offsetY;
  dragged.moved = dragged.moved || Math.abs(x - dragged.x) + Math.abs(y - dragged.y) > 4;
  dragged.to = Math.max(x, kGutter);
  if (!dragged.moved) return;
  tip.hidden = true;
  if (dragged.overview) {
    const middle = (x - kGutter) / (view.width - kGutter) * whole, half = (view.to - view.from) / 2;
    show(middle - half, middle + half);
  } else if (!dragged.selects) {
    show(dragged.from - (x - dragged.x) / scale(), dragged.from - (x - dragged.x) / scale() + view.to - view.from);
    scrollTo(dragged.top - (y - dragged.y));
  }
  drawMarks();
}
function drop(event) {
  const was = dragged;
  dragged = null;
  if (!was) return;
  if (was.moved && was.selects && Math.abs(was.to - was.x) > 4) {
    const [from, to] = [timeAt(Math.min(was.x, was.to)), timeAt(Math.max(was.x, was.to))];
    show(from, to);
  } else if (!was.moved && was.overview) {
    const middle = (was.x - kGutter) / (view.width - kGutter) * whole, half = (view.to - view.from) / 2;
    show(middle - half, middle + half);
  } else if (!was.moved && was.y > kTop) {
    trail.length = 0;
    choose(itemAt(event.offsetX, event.offsetY));
  }
  drawMarks();
}
function turn(event) {
  event.preventDefault();
  const unit = event.deltaMode === 1 ? 30 : 1, down = event.deltaY * unit, across = event.deltaX * unit;
  if (event.ctrlKey) heighten(down > 0 ? -1 : 1);
  else if (event.offsetX < kGutter) scrollTo(view.top + down);
  else if (event.shiftKey || Math.abs(across) > Math.abs(down)) shift(across || down);
  else zoom(1.0016 ** Math.max(-400, Math.min(400, down)), event.offsetX);
  hover(event);
}
const kKeys = {
  w: () => zoom(0.7), '+': () => zoom(0.7), '=': () => zoom(0.7), s: () => zoom(1 / 0.7), '-': () => zoom(1 / 0.7),
  a: () => shift(-view.width / 6), ArrowLeft: () => shift(-view.width / 6),
  d: () => shift(view.width / 6), ArrowRight: () => shift(view.width / 6),
  ArrowUp: () => scrollTo(view.top - 60), ArrowDown: () => scrollTo(view.top + 60),
  '[': () => heighten(-2), ']': () => heighten(2), 0: fit, f: fit, '?': () => byId('keys').toggleAttribute('hidden'),
  '/': () => byId('search').focus(), Enter: () => chain.length > 1 && go(chain[1]), Backspace: goBack,
  n: () => nextFound(1), N: () => nextFound(-1),
  Escape: () => {
    for (const id of ['search', 'stage', 'micro']) byId(id).value = '';
    byId('keys').hidden = true;
    wanted.shades = null;
    for (const each of byId('legend').querySelectorAll('button')) each.classList.remove('off');
    find();
    choose(null);
  },
};
function press(event) {
  const typing = /^(INPUT|SELECT)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing && event.target.id === 'search' && event.key === 'Enter') nextFound(event.shiftKey ? -1 : 1);
  if (typing && event.key === 'Escape') event.target.blur();
  if ((typing && event.key !== 'Escape') || !(event.key in kKeys) || (event.key === 'Enter' && event.target.tagName === 'BUTTON')) return;
  event.preventDefault();
  kKeys[event.key]();
}

function begin() {
  readColours();
  fillLegend();
  fillSummary();
  fillChoices();
  view.from = -0.005 * whole;
  view.to = 1.005 * whole;
  new ResizeObserver(resize).observe(byId('view'));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readColours();
    redraw();
  });
  canvas.addEventListener('pointerdown', (event) => {
    const {offsetX: x, offsetY: y} = event;
    if (x < kGutter || event.button !== 0) return;
    dragged = {x, y, to: x, from: view.from, top: view.top, overview: y < kOverview, selects: event.shiftKey || (y >= kOverview && y < kTop)};
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => dragged ? dragTo(event) : hover(event));
  canvas.addEventListener('pointerup', drop);
  canvas.addEventListener('pointerleave', () => {
    hovered = null;
    tip.hidden = true;
    pointer.x = -1;
    drawMarks();
  });
  canvas.addEventListener('dblclick', fit);
  canvas.addEventListener('wheel', turn, {passive: false});
  document.addEventListener('keydown', press);
  byId('search').addEventListener('input', find);
  byId('in').onclick = kKeys.w;
  byId('out').onclick = kKeys.s;
  byId('fit').onclick = fit;
  byId('help').onclick = kKeys['?'];
  resize();
}
begin();
