// Reads what the page holds: columns of integers, and from them rows, lanes and texts.
'use strict';

const head = JSON.parse(document.getElementById('head').textContent);

// Numbers are zigzag-coded in groups of 7 bits, the lowest first.
function readColumns() {
  const text = atob(document.getElementById('data').textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  const columns = {};
  for (const [name, first, count, differences] of head.columns) {
    const isTime = /\.(start|length|from|waited|shared)$/.test(name) || name === 'bytes';
    const numbers = isTime ? new Float64Array(count) : new Int32Array(count);
    for (let i = 0, at = first, sum = 0; i < count; ++i) {
      let number = 0, factor = 1, byte;
      do {
        byte = bytes[at++];
        number += (byte & 127) * factor;
        factor *= 128;
      } while (byte & 128);
      number = number % 2 ? -(number + 1) / 2 : number / 2;
      numbers[i] = differences ? (sum += number) : number;
    }
    columns[name] = numbers;
  }
  return columns;
}

const columns = readColumns();
const column = (name) => columns[name] || new Int32Array(0);

// Puts the numbers of texts back between the pieces of their patterns, when they are asked for.
function textReader(patterns, numbers) {
  const firsts = new Int32Array(patterns.length + 1);
  for (let i = 0; i < patterns.length; ++i)
    firsts[i + 1] = firsts[i] + head.patterns[patterns[i]].length - 1;
  return (i) => {
    const pieces = head.patterns[patterns[i]];
    let text = pieces[0];
    for (let p = 1; p < pieces.length; ++p) text += numbers[firsts[i] + p - 1] + pieces[p];
    return text;
  };
}

const kFlags = {origin: 3, paired: 4, second: 8, computes: 16, cause: 32};

// By instruction of all roles.
const one = {
  shade: column('shade'), kind: column('kind'), pass: column('pass'), stream: column('stream'),
  stage: column('stage'), micro: column('micro'), micros: column('micros'), ahead: column('ahead'),
  what: column('what'), bytes: column('bytes'), peer: column('peer'),
  text: textReader(column('text'), column('text.numbers')),
};

// By step of all rows.
const step = {
  one: column('step.one'), number: column('step.number'), start: column('step.start'),
  length: column('step.length'), waited: column('step.waited'), shared: column('step.shared'),
  flags: column('step.flags'), cause: column('step.cause'), row: null,
};
step.count = step.one.length;
step.row = new Int32Array(step.count);
for (let s = 0; s < step.count; ++s) step.cause[s] = step.cause[s] === 0 ? -1 : s - step.cause[s];

// By piece of time in which a row's device computes nothing.
const gap = {
  from: column('gap.from'), length: column('gap.length'), reason: column('gap.reason'),
  step: column('gap.step'), cause: column('gap.cause'), row: new Int32Array(column('gap.from').length),
};

// By measured step of all rows.
const run = {
  of: column('run.of'), start: column('run.start'), length: column('run.length'), kind: column('run.kind'),
  stream: column('run.stream'), stage: column('run.stage'), micro: column('run.micro'), number: column('run.number'),
  text: textReader(column('run.text'), column('run.text.numbers')), row: new Int32Array(column('run.of').length),
};
run.by = new Map();  // by step: what was measured of it
for (let i = 0; i < run.of.length; ++i) if (run.of[i] >= 0) run.by.set(run.of[i], i);

function shadeOfRun(i) {
  if (run.of[i] >= 0) return one.shade[step.one[run.of[i]]];
  const kind = head.kinds[run.kind[i]];
  return kind === 'compute' ? 4 : kind === 'send' || kind === 'recv' ? 5 : kind === 'input' || kind === 'copy' ? 7 : 6;
}

// Groups numbers of items by stream into lanes, each in order of start.
function lanesOf(first, count, table, streamOf, takes) {
  const lanes = new Map();
  for (let i = first; i < first + count; ++i) {
    if (!takes(i)) continue;
    const stream = streamOf(i);
    if (!lanes.has(stream)) lanes.set(stream, []);
    lanes.get(stream).push(i);
  }
  return [...lanes.keys()].sort((a, b) => a - b).map((stream) => {
    const items = Int32Array.from(lanes.get(stream)).sort((a, b) => table.start[a] - table.start[b] || a - b);
    // By item: the latest end so far, by which the first visible one is found.
    const reach = new Float64Array(items.length);
    let latest = 0, longest = 0;
    items.forEach((item, n) => {
      reach[n] = latest = Math.max(latest, table.start[item] + table.length[item]);
      longest = Math.max(longest, table.length[item]);
    });
    return {stream, items, reach, table, longest};
  });
}

function coordinatesOf(rank) {
  const own = [];
  for (let a = (head.mesh || []).length; a-- > 0;) {
    own[a] = rank % head.mesh[a][1];
    rank = Math.floor(rank / head.mesh[a][1]);
  }
  return own;
}

// Returns the rank that a message comes from or goes to, seen from the first rank of a row; -1: no message.
function peerOf(s) {
  const peer = head.peers && head.peers[one.peer[step.one[s]]];
  if (!peer) return -1;
  const own = coordinatesOf(head.rows[step.row[s]].ranks[0]);
  return head.mesh.reduce((rank, [, size], a) => rank * size + (peer[a] >= 0 ? peer[a] : own[a]), 0);
}

function readRows() {
  let firstGap = 0, firstRun = 0;
  return head.rows.map((row, r) => {
    step.row.fill(r, row.first, row.first + row.count);
    gap.row.fill(r, firstGap, firstGap + row.gaps);
    const streams = head.roles[row.role].streams;
    const lanes = lanesOf(row.first, row.count, step, (s) => one.stream[step.one[s]], (s) => step.length[s] > 0);
    for (const lane of lanes) {
      lane.name = streams[lane.stream] || `stream ${lane.stream}`;
      lane.computes = lane.items.some((s) => step.flags[s] & kFlags.computes);
    }
    const idle = head.reasons.map(() => 0);
    for (let g = firstGap; g < firstGap + row.gaps; ++g) idle[gap.reason[g]] += gap.length[g];
    const [rank, count] = head.measured ? head.measured.rows[r] : [-1, 0];
    run.row.fill(r, firstRun, firstRun + count);
    const measured = lanesOf(firstRun, count, run, (i) => run.stream[i], (i) => run.length[i] > 0);
    for (const lane of measured) lane.name = streams[lane.stream] || `stream ${lane.stream}`;
    const made = {ranks: row.ranks, first: row.first, count: row.count, sections: row.sections, streams, lanes, idle,
                  firstGap, gaps: row.gaps, rank, measured, firstRun, runs: count};
    firstGap += row.gaps;
    firstRun += count;
    return made;
  });
}

const rows = readRows();

// Returns how long something of these items is under way, however many at once.
function covered(first, count, table, takes) {
  const items = [];
  for (let i = first; i < first + count; ++i) if (takes(i)) items.push(i);
  items.sort((a, b) => table.start[a] - table.start[b]);
  let sum = 0, until = -Infinity;
  for (const i of items) {
    const end = table.start[i] + table.length[i];
    if (end > until) sum += end - Math.max(until, table.start[i]);
    until = Math.max(until, end);
  }
  return sum;
}
for (const row of rows) row.measuredBusy = covered(row.firstRun, row.runs, run, (i) => head.kinds[run.kind[i]] === 'compute');
