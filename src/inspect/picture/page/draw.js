// Draws the timeline: an overview, an axis, and a row for each kind of rank with its streams as lanes. What is
// narrower than a pixel is summed up, so that drawing takes as long as there are pixels and visible items.

const kGutter = 172, kOverview = 34, kTop = kOverview + 24, kFont = '11px system-ui, sans-serif', kLetter = 6.3;
const canvas = document.getElementById('steps'), marks = document.getElementById('marks');
const ink = canvas.getContext('2d'), pen = marks.getContext('2d');
const view = {from: 0, to: 1, top: 0, unit: 14, width: 0, height: 0, bottom: 0, fits: true, places: []};
const colours = {shade: [], reason: []};
// Which instructions stand out: null, or a byte of each.
let lit = null, hovered = null, chosen = null, chain = [], dragged = null;

function readColours() {
  const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue(`--${name}`).trim();
  colours.shade = head.shades.map((_, i) => get(`shade${i}`));
  colours.reason = head.reasons.map((_, i) => get(`reason${i}`));
  for (const name of ['ground', 'row', 'run', 'line', 'faint', 'text', 'label', 'accent', 'slower', 'faster', 'mark']) colours[name] = get(name);
}

// Whole of what is shown: predicted, and measured where that takes longer.
const whole = Math.max(head.length, head.measured ? head.measured.length : 0, 1);
const scale = () => (view.width - kGutter) / (view.to - view.from);
const xOf = (time) => kGutter + (time - view.from) * scale();
const timeAt = (x) => view.from + (x - kGutter) / scale();

// ---- Where rows and lanes are, from the top of all rows ----
const laneHeight = (computes) => computes ? view.unit : Math.max(2, Math.round(view.unit * 0.55));
function layOut() {
  let y = 6;
  const gapBelow = Math.max(2, Math.round(view.unit * 0.45));
  view.places = rows.map((row, r) => {
    const place = {row, r, y, lanes: []};
    const put = (lane, computes, measured) => {
      place.lanes.push({lane, y, height: laneHeight(computes), measured});
      y += laneHeight(computes) + (view.unit > 8 ? 1 : 0);
    };
    const device = row.lanes.find((lane) => lane.computes);
    for (const lane of row.lanes) put(lane, lane.computes, false);
    place.device = place.lanes.find((at) => at.lane === device) || null;
    place.runs = y;
    for (const lane of row.measured) put(lane, row.lanes.some((own) => own.stream === lane.stream && own.computes), true);
    if (place.lanes.length === 0) y += view.unit;
    place.height = y - place.y;
    y += gapBelow;
    return place;
  });
  view.bottom = y;
}
function fitRows() {
  const room = view.height - kTop - 8;
  for (view.unit = 34; view.unit > 5; --view.unit) {
    layOut();
    if (view.bottom <= room) break;
  }
  layOut();
  view.top = 0;
}
function placeAt(y) {  // of the canvas
  const at = y - kTop + view.top;
  let low = 0, high = view.places.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (view.places[middle].y + view.places[middle].height < at) low = middle + 1;
    else high = middle;
  }
  const place = view.places[low];
  return place && at >= place.y ? place : null;
}
function laneAt(place, y) {
  const at = y - kTop + view.top;
  return place.lanes.find((lane) => at >= lane.y - 1 && at < lane.y + lane.height + 1) || null;
}
function laneOfItem(item) {
  const place = view.places[rowOf(item)];
  if (!place) return null;
  const stream = item.kind === 'step' ? one.stream[step.one[item.at]] : item.kind === 'run' ? run.stream[item.at] : -1;
  return place.lanes.find((at) => at.measured === (item.kind === 'run') && at.lane.stream === stream) || place.device || place.lanes[0] || null;
}

// The first item of a lane that ends behind a time.
function firstBehind(lane, time) {
  let low = 0, high = lane.items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// ---- Lanes ----
// Sums up what is narrower than a pixel, and draws runs of pixels that look the same at once.
class Pixels {
  constructor(y, height, palette) {
    Object.assign(this, {y, height, palette, at: -1, from: 0, end: 0, shown: -1});
    this.sums = new Float64Array(2 * palette.length);  // those that stand out come last
  }
  add(x0, x1, colour, standsOut) {
    const pixel = Math.floor(x0);
    if (pixel !== this.at) this.finish();
    this.at = pixel;
    this.sums[colour + (standsOut ? this.palette.length : 0)] += Math.max(x1 - x0, 0.02);
  }
  // A pixel has the colour of most that is in it, and of what stands out before all else.
  finish() {
    let best = -1, most = 0, all = 0;
    this.sums.forEach((sum, i) => {
      const weight = i < this.palette.length ? sum : 1e6 * sum;
      if (weight > most) [best, most] = [i, weight];
      all += sum;
    });
    this.sums.fill(0);
    if (best < 0) return;
    const shown = 4 * best + Math.min(3, Math.floor(all * 4));
    if (shown !== this.shown || this.end !== this.at) {
      this.flush();
      Object.assign(this, {from: this.at, shown});
    }
    this.end = this.at + 1;
  }
  flush() {
    if (this.shown < 0) return;
    const colour = this.shown >> 2, half = this.palette.length;
    ink.globalAlpha = (0.4 + 0.2 * (this.shown & 3)) * (lit && colour < half ? 0.16 : 1);
    ink.fillStyle = this.palette[colour % half];
    ink.fillRect(this.from, this.y, this.end - this.from, this.height);
    ink.globalAlpha = 1;
  }
  close() {
    this.finish();
    this.flush();
  }
}

function shortLabel(s) {
  const o = step.one[s];
  if (one.shade[o] > 4) return head.names[one.what[o]] || '';
  const pass = head.passes[one.pass[o]];
  return one.shade[o] === 4 ? pass.trim() || 'U' : `${pass}${one.micro[o] >= 0 ? one.micro[o] : ''}${one.ahead[o] + step.number[s] ? '\'' : ''}`;
}
function drawLabel(text, short, x0, x1, y, height) {
  const from = Math.max(x0, kGutter), width = Math.min(x1, view.width) - from - 6;
  const shown = text.length * kLetter <= width ? text : short.length * kLetter <= width ? short : '';
  if (shown) ink.fillText(shown, from + 4, y + height / 2 + 0.5);
}
const standsOutRun = (i) => !lit || (run.of[i] >= 0 && lit[step.one[run.of[i]]]);

function drawLane({lane, height, measured}, y) {
  const table = lane.table, per = scale(), last = view.to, pixels = new Pixels(y, height, colours.shade);
  for (let n = firstBehind(lane, view.from); n < lane.items.length; ++n) {
    const i = lane.items[n];
    if (table.start[i] >= last) break;
    const x0 = kGutter + (table.start[i] - view.from) * per, x1 = x0 + table.length[i] * per;
    const shade = measured ? shadeOfRun(i) : one.shade[step.one[i]], bright = measured ? standsOutRun(i) : !lit || lit[step.one[i]] === 1;
    if (x1 - x0 < 1) {
      if (x1 >= kGutter) pixels.add(Math.max(x0, kGutter), x1, shade, lit && bright);
      continue;
    }
    const from = Math.max(x0, kGutter), to = Math.min(x1, view.width);
    ink.globalAlpha = bright ? 1 : 0.16;
    ink.fillStyle = colours.shade[shade];
    ink.fillRect(from, y, Math.max(to - from - (x1 - x0 > 4 ? 1 : 0), 0.5), height);
    if (measured && run.of[i] >= 0) drawDifference(i, from, to, y, height);
    if (height >= 11 && x1 - x0 > 16 && bright) {
      ink.fillStyle = colours.label;
      drawLabel(measured ? run.text(i) : labelOf(i), measured ? (run.of[i] >= 0 ? shortLabel(run.of[i]) : '') : shortLabel(i), x0, x1, y, height);
    }
    ink.globalAlpha = 1;
  }
  pixels.close();
}
// Underlines a measured step whose task took more than 2 % longer or less long than predicted.
function drawDifference(i, from, to, y, height) {
  const [predicted, measured] = tasks.get(run.of[i]), by = difference(measured, predicted);
  if (!by.kind || height < 4) return;
  ink.fillStyle = colours[by.kind];
  ink.fillRect(from, y + height - 2, to - from - 1, 2);
}

function drawGaps(place, y, height) {
  const {row} = place, per = scale(), band = Math.max(2, Math.round(height * 0.18)), pixels = new Pixels(y + height - band, band, colours.reason);
  let low = row.firstGap, high = row.firstGap + row.gaps;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (gap.from[middle] + gap.length[middle] <= view.from) low = middle + 1;
    else high = middle;
  }
  for (let g = low; g < row.firstGap + row.gaps && gap.from[g] < view.to; ++g) {
    const x0 = xOf(gap.from[g]), x1 = x0 + gap.length[g] * per;
    if (x1 - x0 < 1) {
      if (x1 >= kGutter) pixels.add(Math.max(x0, kGutter), x1, gap.reason[g], false);
      continue;
    }
    const from = Math.max(x0, kGutter), to = Math.min(x1, view.width);
    ink.fillStyle = colours.reason[gap.reason[g]];
    ink.globalAlpha = lit ? 0.05 : 0.14;
    ink.fillRect(from, y, to - from, height);
    ink.globalAlpha = lit ? 0.25 : 0.9;
    ink.fillRect(from, y + height - band, to - from - (x1 - x0 > 4 ? 1 : 0), band);
    ink.globalAlpha = 1;
    if (height >= 14 && x1 - x0 > 70 && !lit) {
      ink.fillStyle = colours.faint;
      const s = gap.step[g];
      drawLabel(s >= 0 ? `${head.reasons[gap.reason[g]]}: ${labelOf(s)}` : head.reasons[gap.reason[g]], head.reasons[gap.reason[g]], x0, x1, y - 1, height);
    }
  }
  pixels.close();
}

// ---- Names, axis, overview ----
function drawNames(place, y) {
  const {row} = place, mid = y + Math.min(place.height, 18) / 2;
  ink.fillStyle = colours.text;
  ink.fillText(ranksText(row.ranks), 14, mid);
  ink.fillStyle = colours.faint;
  ink.textAlign = 'right';
  ink.fillText(`idle ${(100 * isIdle(row) / (head.length || 1)).toFixed(0)} %`, kGutter - 10, mid);
  ink.textAlign = 'left';
  if (view.unit < 13) return;
  let shown = mid;
  for (const at of place.lanes) {
    const lane = y + at.y - place.y + at.height / 2;
    if (lane < shown + 12) continue;
    ink.fillText(`${at.lane.name}${at.measured ? `, measured` : ''}`, 26, lane);
    shown = lane;
  }
}
function niceStep(span, most) {
  const raw = span * head.tick / most, size = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * size).find((nice) => nice >= raw) / head.tick;
}
function drawAxis() {
  const {width, height} = view, every = niceStep(view.to - view.from, Math.max(2, (width - kGutter) / 110));
  ink.fillStyle = colours.ground;
  ink.fillRect(kGutter, kOverview, width - kGutter, kTop - kOverview);
  for (let i = Math.ceil(view.from / every); i * every <= view.to; ++i) {
    const x = Math.round(xOf(i * every)) + 0.5;
    ink.fillStyle = colours.line;
    ink.fillRect(x, kTop - 6, 1, height);
    ink.fillStyle = colours.faint;
    ink.fillText(seconds(i * every), x + 4, kTop - 12);
  }
}
// Lines where training steps end on the last row to end them.
function drawStepEnds() {
  const count = Math.min(...rows.map((row) => row.sections.length));
  if (count < 2) return;
  for (let n = 0; n < count - 1; ++n) {
    const x = Math.round(xOf(Math.max(...rows.map((row) => row.sections[n][3])))) + 0.5;
    if (x < kGutter || x > view.width) continue;
    ink.fillStyle = colours.faint;
    ink.globalAlpha = 0.7;
    ink.fillRect(x, kTop - 4, 1, view.height);
    ink.globalAlpha = 1;
  }
}

// The share of all devices that compute, by colour and column of the overview.
const overview = {width: 0, sums: null};
function sumOverview() {
  const width = Math.max(1, Math.floor(view.width - kGutter));
  if (overview.width === width) return;
  const sums = overview.sums = head.shades.map(() => new Float64Array(width));
  overview.width = width;
  const per = width / whole;
  for (let s = 0; s < step.count; ++s) {
    if (!(step.flags[s] & kFlags.computes)) continue;
    const x0 = step.start[s] * per, x1 = (step.start[s] + step.length[s]) * per, own = sums[one.shade[step.one[s]]];
    const weight = 1 / rows.length / (step.flags[s] & kFlags.paired ? 2 : 1);
    for (let x = Math.floor(x0); x < Math.min(x1, width); ++x) own[x] += weight * (Math.min(x1, x + 1) - Math.max(x0, x));
  }
}
function drawOverview() {
  sumOverview();
  const base = kOverview - 4, tall = kOverview - 10;
  ink.fillStyle = colours.row;
  ink.fillRect(kGutter, base - tall, view.width - kGutter, tall);
  const filled = new Float64Array(overview.width);
  overview.sums.forEach((own, shade) => {
    ink.fillStyle = colours.shade[shade];
    for (let x = 0; x < overview.width; ++x) {
      if (own[x] <= 0) continue;
      const height = Math.min(own[x], 1 - filled[x]) * tall;
      ink.fillRect(kGutter + x, base - filled[x] * tall - height, 1, height);
      filled[x] += own[x];
    }
  });
  ink.fillStyle = colours.faint;
  ink.fillText('devices at work', 14, base - tall / 2);
  const per = overview.width / whole, x0 = kGutter + view.from * per, x1 = kGutter + view.to * per;
  ink.fillStyle = colours.ground;
  ink.globalAlpha = 0.65;
  ink.fillRect(kGutter, base - tall, x0 - kGutter, tall);
  ink.fillRect(x1, base - tall, view.width - x1, tall);
  ink.globalAlpha = 1;
  ink.strokeStyle = colours.accent;
  if (view.to - view.from < whole * 0.999) ink.strokeRect(x0 + 0.5, base - tall + 0.5, Math.max(x1 - x0 - 1, 2), tall - 1);
}

function draw() {
  const {width, height} = view;
  ink.font = kFont;
  ink.textBaseline = 'middle';
  ink.fillStyle = colours.ground;
  ink.fillRect(0, 0, width, height);
  drawAxis();
  ink.save();
  ink.beginPath();
  ink.rect(0, kTop, width, height - kTop);
  ink.clip();
  let named = -Infinity;
  for (const place of view.places) {
    const y = kTop + place.y - view.top;
    if (y > height || y + place.height < kTop) continue;
    for (const at of place.lanes) {
      const top = kTop + at.y - view.top;
      ink.fillStyle = at.measured ? colours.run : colours.row;
      ink.globalAlpha = at === place.device || at.measured ? 1 : 0.5;
      ink.fillRect(kGutter, top, width - kGutter, at.height);
      ink.globalAlpha = 1;
      if (at === place.device) drawGaps(place, top, at.height);
      drawLane(at, top);
    }
    if (y >= named + 15) {
      drawNames(place, y);
      named = y;
    }
  }
  drawStepEnds();
  ink.restore();
  drawOverview();
  drawMarks();
}
