// Says what is shown: times, ranks, facts of steps and gaps.

function seconds(ticks) {
  const time = ticks * head.tick, size = Math.abs(time) * (1 + 1e-9);  // a second is no 1000 ms
  if (size === 0) return '0 s';
  const [factor, unit] = size >= 1 ? [1, 's'] : size >= 1e-3 ? [1e3, 'ms'] : size >= 1e-6 ? [1e6, '\u00b5s'] : [1e9, 'ns'];
  return `${Number((time * factor).toPrecision(4))} ${unit}`;
}
function amount(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return `${Number(bytes.toPrecision(4))} ${units[unit]}`;
}
const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
const signed = (share) => `${share < 0 ? '\u2212' : '+'}${Math.abs(100 * share).toFixed(1)}\u00a0%`;

function ranksText(ranks) {
  if (ranks.length === 1) return `rank ${ranks[0]}`;
  return `ranks ${ranks.slice(0, 2).join(', ')}${ranks.length > 2 ? ` +${ranks.length - 2}` : ''}`;
}
const rankText = (r) => `rank ${rows[r].ranks[0]}`;
const labelOf = (s) => one.text(step.one[s]);
const textOf = (item) => item.kind === 'step' ? labelOf(item.at) : item.kind === 'run' ? run.text(item.at) : 'idle';
const tableOf = (item) => item.kind === 'run' ? run : step;
const startOf = (item) => item.kind === 'gap' ? gap.from[item.at] : tableOf(item).start[item.at];
const lengthOf = (item) => item.kind === 'gap' ? gap.length[item.at] : tableOf(item).length[item.at];
const rowOf = (item) => item.kind === 'gap' ? gap.row[item.at] : tableOf(item).row[item.at];
const isIdle = (row) => row.idle.reduce((sum, time) => sum + time, 0);

function difference(measured, predicted) {
  if (!predicted) return {text: '', kind: ''};
  const share = measured / predicted - 1;
  return {text: signed(share), kind: share > 0.02 ? 'slower' : share < -0.02 ? 'faster' : ''};
}

// A task may be several instructions, and stated costs are of whole tasks: what is measured of all of one is
// compared with what is predicted of all. By number of the row's step: [predicted, measured, instructions].
function sumTasks() {
  const tasks = new Map(), of = new Map();
  for (const [s, i] of run.by) {
    const o = step.one[s], key = step.flags[s] & kFlags.computes || head.kinds[one.kind[o]] === 'compute'
      ? `${step.row[s]} ${step.number[s]} ${one.ahead[o]} ${labelOf(s)}` : s;
    if (!tasks.has(key)) tasks.set(key, [0, 0, 0]);
    const task = tasks.get(key);
    task[0] += step.length[s];
    task[1] += run.length[i];
    task[2] += 1;
    of.set(s, task);
  }
  return of;
}
const tasks = sumTasks();

// Facts are [name, value] or [name, value, class].
function stepFacts(s) {
  const o = step.one[s], row = rows[step.row[s]], facts = [];
  const add = (name, value, kind) => facts.push([name, value, kind]);
  add('on', `${ranksText(row.ranks)}, stream ${row.streams[one.stream[o]] || one.stream[o]}`);
  if (one.what[o] >= 0) add('moves', head.names[one.what[o]]);
  const peer = peerOf(s);
  if (peer >= 0) add(head.kinds[one.kind[o]] === 'send' ? 'to' : 'from', `rank ${peer}`);
  if (one.bytes[o] > 0) add('bytes', amount(one.bytes[o]));
  const pass = head.passes[one.pass[o]];
  if (one.shade[o] < 5) add('pass', `${head.shades[one.shade[o]]}${pass.trim() && pass !== '-' ? ` (${pass})` : ''}`);
  if (one.stage[o] >= 0) add('stage', one.stage[o]);
  if (one.micro[o] >= 0)
    add(one.micros[o] > 1 ? 'microbatches' : 'microbatch', one.micros[o] > 1 ? `${one.micro[o]} to ${one.micro[o] + one.micros[o] - 1}` : one.micro[o]);
  if (head.steps > 1 || one.ahead[o]) add('step', step.number[s] + one.ahead[o] + 1);
  add('start', seconds(step.start[s]));
  add('takes', `${seconds(step.length[s])}${step.shared[s] > 0 && step.length[s] > 0 ? `; ${seconds(step.length[s] - step.shared[s])} by itself` : ''}`);
  if (step.waited[s] > 0) add('was ready', `${seconds(step.waited[s])} before`);
  if (step.flags[s] & kFlags.paired) add('shares', 'the device with the other half of its pair');
  add('cost', head.origins[step.flags[s] & kFlags.origin]);
  if (run.by.has(s)) addTask(s, 'measured', run.length[run.by.get(s)], facts);
  return facts;
}
// Says the other side of a measured step, and how far the two are apart; of tasks of several instructions, of all of them.
function addTask(s, name, other, facts) {
  const [predicted, measured, count] = tasks.get(s), by = difference(measured, predicted);
  const apart = by.text ? ` (${by.text})` : '';
  if (count === 1) return facts.push([name, `${seconds(other)}${apart}`, by.kind]);
  facts.push([name, seconds(other)]);
  return facts.push(['its task', `predicted ${seconds(predicted)}, measured ${seconds(measured)}${apart}`, by.kind]);
}
function runFacts(i) {
  const row = rows[run.row[i]], facts = [];
  facts.push(['measured on', `rank ${row.rank}, stream ${row.streams[run.stream[i]] || run.stream[i]}`]);
  if (run.stage[i] >= 0) facts.push(['stage', run.stage[i]]);
  if (run.micro[i] >= 0) facts.push(['microbatch', run.micro[i]]);
  facts.push(['step', run.number[i] + head.measured.first_step]);
  facts.push(['start', seconds(run.start[i])], ['takes', seconds(run.length[i])]);
  const s = run.of[i];
  if (s < 0) return facts.concat([['predicted', 'no: the plan does not have it']]);
  addTask(s, 'predicted', step.length[s], facts);
  facts.push(['begins', `${seconds(Math.abs(run.start[i] - step.start[s]))} ${run.start[i] >= step.start[s] ? 'later' : 'earlier'}`]);
  return facts;
}
function gapFacts(g) {
  const row = rows[gap.row[g]], s = gap.step[g], cause = gap.cause[g];
  const facts = [['on', ranksText(row.ranks)], ['waits for', head.reasons[gap.reason[g]]]];
  if (s >= 0) {
    const o = step.one[s];
    facts.push(['in', labelOf(s)]);
    if (one.what[o] >= 0) facts.push(['moves', `${head.names[one.what[o]]}${one.bytes[o] ? `, ${amount(one.bytes[o])}` : ''}`]);
    facts.push(['on stream', row.streams[one.stream[o]] || one.stream[o]]);
  }
  if (cause >= 0) facts.push(['held up by', `${rankText(step.row[cause])}, which comes to ${labelOf(cause)} at ${seconds(step.start[cause] - step.waited[cause])}`]);
  facts.push(['from', seconds(gap.from[g])], ['for', seconds(gap.length[g])]);
  return facts;
}
const factsOf = (item) => item.kind === 'step' ? stepFacts(item.at) : item.kind === 'gap' ? gapFacts(item.at) : runFacts(item.at);

function rowFacts(row) {
  const facts = [['ranks', row.ranks.length > 24 ? `${row.ranks.slice(0, 24).join(', ')} \u2026 (${row.ranks.length})` : row.ranks.join(', ')]];
  if (head.mesh) facts.push(['at', coordinatesOf(row.ranks[0]).map((at, a) => `${head.mesh[a][0]} ${at}`).join(', ')]);
  facts.push(['computes', `${seconds(head.length - isIdle(row))}, ${percent(1 - isIdle(row) / head.length)}`]);
  row.idle.forEach((time, reason) => {
    if (time > 0) facts.push([`waits: ${head.reasons[reason]}`, `${seconds(time)}, ${percent(time / head.length)}`]);
  });
  if (row.rank >= 0) {
    const by = difference(row.measuredBusy, head.length - isIdle(row));
    facts.push(['measured', `rank ${row.rank} computes ${seconds(row.measuredBusy)} in ${head.measured.steps} step${head.measured.steps > 1 ? 's' : ''}`]);
    if (head.measured.steps === head.steps && by.text) facts.push(['', by.text, by.kind]);
  }
  return facts;
}

// ---- Elements: text is never read as markup ----
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function factTable(facts) {
  const table = element('table');
  for (const [name, value, kind] of facts) {
    const line = table.insertRow();
    line.append(element('th', name), element('td', value, kind));
  }
  return table;
}

// ---- What a step or gap waited for, and that in turn ----
function causeOf(item) {
  const at = item.kind === 'step' ? step.cause[item.at]
    : item.kind === 'gap' ? (gap.cause[item.at] >= 0 ? gap.cause[item.at] : gap.step[item.at])
    : run.of[item.at];
  return at >= 0 ? {kind: 'step', at} : null;
}
function chainOf(item) {
  const kMost = 2000, seen = new Set(), chain = [];
  for (let next = item; next && chain.length < kMost; next = causeOf(next)) {
    if (next.kind === 'step' && seen.has(next.at)) break;
    if (next.kind === 'step') seen.add(next.at);
    chain.push(next);
  }
  // What takes no time says nothing, but where the chain goes to another row.
  const turns = (n) => n === 0 || rowOf(chain[n - 1]) !== rowOf(chain[n]);
  return chain.filter((link, n) => n === 0 || lengthOf(link) > 0 || turns(n) || (n + 1 < chain.length && turns(n + 1)));
}
