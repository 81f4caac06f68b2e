"use strict";
// The page of a plan: draws what tools/show_html.c wrote into #data. No library, no network. Long plans stay quick: the canvases merge what is narrower
// than a pixel, the ledger keeps only the rows in sight in the document, and layers that are alike are one box.
const plan = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const QUEUES = ["compute", "comm", "io"], PHASES = ["start", "micro-batch", "update"];
const KINDS = ["forward", "backward", "gather", "sum", "update", "other"];
const KIND_TEXT = {forward: "forward", backward: "backward", gather: "gathers parameters", sum: "sums over ranks", update: "optimizer", other: "start and bookkeeping"};

// ---- Numbers as text ----------------------------------------------------------------------------------------------------------------------
const exact = (n) => Math.round(n).toLocaleString("en-US");
function bytesText(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let u = 0;
  while (Math.abs(n) >= 1024 && u < units.length - 1) { n /= 1024; u++; }
  return (u && Math.abs(n) < 100 ? n.toFixed(1) : Math.round(n)) + " " + units[u];
}
function timeText(s) {
  if (s === 0) return "0 s";
  for (const [unit, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) if (Math.abs(s) >= unit) return (s / unit).toPrecision(3) + " " + name;
  return (s / 1e-9).toPrecision(3) + " ns";
}
const share = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(part / whole < 0.0995 ? 1 : 0) + " %" : "");
const escape = (text) => String(text).replace(/[&<>"']/g, (c) => "&#" + c.charCodeAt(0) + ";");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
function element(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

// ---- Steps --------------------------------------------------------------------------------------------------------------------------------
const steps = plan.steps, nSteps = steps.op.length, hasTimes = plan.estimate !== null;
plan.ledger = plan.ledger.map((row) => Object.fromEntries(row.map((value, i) => [plan.ledger_columns[i], value])));
for (let i = 1; i < nSteps; i++) if (steps.node[i] === 0) steps.node[i] = steps.node[i - 1];
const waitsOf = new Map();
for (const [step, waited] of plan.waits) waitsOf.set(step, [...(waitsOf.get(step) || []), waited]);
const entryOf = new Map(plan.ledger.map((row, i) => [row.step, i]));
function kindOf(i) {
  const entry = entryOf.get(i);
  if (entry !== undefined) return plan.ledger[entry].sums ? 3 : 2;
  if (steps.phase[i] === 0) return 5;
  if (steps.phase[i] === 2) return 4;
  return steps.backward[i] ? 1 : 0;
}
const kinds = new Uint8Array(nSteps);
for (let i = 0; i < nSteps; i++) kinds[i] = kindOf(i);
const startOf = {steps: new Float64Array(nSteps), time: new Float64Array(nSteps)}, endOf = {steps: new Float64Array(nSteps), time: new Float64Array(nSteps)};
const lanes = QUEUES.map(() => []), parts = [];
for (let i = 0, begun = false; i < nSteps; i++) {
  startOf.steps[i] = i;
  endOf.steps[i] = i + 1;
  lanes[steps.queue[i]].push(i);
  if (steps.queue[i] !== 0) continue;          // a gather for backward may be issued long before
  begun = begun || Boolean(steps.backward[i]);
  const part = steps.phase[i] === 1 ? (begun ? "backward" : "forward") : steps.phase[i] === 0 ? "start" : "update";
  const last = parts[parts.length - 1];
  if (last && last.name === part) last.to = i;
  else parts.push({name: part, from: i, to: i});
}
let horizon = 0;
if (hasTimes) {
  for (let i = 0, offset = 0, phase = -1; i < nSteps; i++) {
    if (steps.phase[i] !== phase) { offset = horizon; phase = steps.phase[i]; }
    startOf.time[i] = offset + steps.start_ns[i] * 1e-9;
    endOf.time[i] = offset + steps.end_ns[i] * 1e-9;
    horizon = Math.max(horizon, endOf.time[i]);
  }
}
const usedLanes = lanes.map((lane, q) => ({name: QUEUES[q], steps: Uint32Array.from(lane)})).filter((lane) => lane.steps.length);

// ---- Memory: changes to series ------------------------------------------------------------------------------------------------------------
const tiers = plan.memory.map((tier) => {
  const series = tier.categories.map((c) => {
    const values = new Float64Array(nSteps);
    for (let k = 0; k < c.at.length; k++) values.fill(c.bytes[k], c.at[k], k + 1 < c.at.length ? c.at[k + 1] : nSteps);
    return {name: c.name, values};
  });
  series.sort((a, b) => Math.min(...sampled(b.values)) - Math.min(...sampled(a.values)));
  return {...tier, series};
});
function sampled(values) {
  const out = [], stride = Math.max(1, Math.floor(values.length / 500));
  for (let i = 0; i < values.length; i += stride) out.push(values[i]);
  return out;
}
const tier = tiers[0];
// What never is a hundredth of the arena would be invisible in the curve and crowd its legend: those are one band.
const CATEGORY_COLOURS = {params: "c1", state: "c0", grads: "c4", buckets: "c5", activations: "c6", gathered: "c3", packed: "c8", partial: "c9", master: "c2", workspace: "c2"};
const categoryColour = (name) => CATEGORY_COLOURS[name] || "c7";
function bandsOf(t) {
  const large = t.series.filter((s) => s.values.some((v) => v > t.arena_bytes / 100)), small = t.series.filter((s) => !large.includes(s));
  if (small.length < 2) return t.series;
  const rest = {name: "other", values: new Float64Array(nSteps)};
  for (const s of small) for (let i = 0; i < nSteps; i++) rest.values[i] += s.values[i];
  return [rest, ...large];
}

// ---- Header and tiles ---------------------------------------------------------------------------------------------------------------------
document.title = plan.title;
byId("title").textContent = plan.title;
byId("facts").textContent = plan.facts.join(" · ");
function tile(what, value, more) {
  byId("tiles").append(element("div", {class: "tile"}, element("div", {class: "what"}, what), element("div", {class: "value"}, value), element("div", {class: "more"}, more)));
}
const sent = plan.account[plan.account.length - 1].bytes, formula = plan.account.find((a) => a.kind === "formula").bytes;
const saved = plan.account.filter((a) => a.kind === "saved").reduce((sum, a) => sum + a.bytes, 0);
tile("Sent by each rank, per step", bytesText(sent), !formula ? "one rank sends nothing" : saved ? bytesText(saved) + " below the formula's " + bytesText(formula) : "as the formula of the stage says");
tile("Memory of a process", bytesText(plan.peak.process), bytesText(plan.peak.rank) + " for each of its ranks");
if (hasTimes) {
  tile("Step time, estimated", timeText(plan.estimate.step_s), plan.micro_per_rank + " × " + timeText(plan.estimate.micro_s) + " and " + timeText(plan.estimate.update_s) + " for the update");
  tile("Communication, exposed", timeText(plan.estimate.exposed_s), share(plan.estimate.exposed_s, plan.estimate.step_s) + " of the step; " + timeText(plan.estimate.comm_s) + " in all");
}
tile("Parameters", plan.params >= 1e9 ? (plan.params / 1e9).toFixed(2) + " B" : plan.params >= 1e6 ? (plan.params / 1e6).toFixed(1) + " M" : exact(plan.params),
  plan.buckets + (plan.buckets === 1 ? " bucket, " : " buckets, ") + (plan.layers.length - 1) + " layers");
tile("Steps", exact(plan.n_steps[1] * plan.micro_per_rank + plan.n_steps[2]), plan.n_steps[1] + " a micro-batch, " + plan.n_steps[2] + " an update, " + plan.n_steps[0] + " at start");

// ---- Tooltip ------------------------------------------------------------------------------------------------------------------------------
const tip = byId("tip");
function showTip(event, html) {
  tip.innerHTML = html;
  tip.style.display = "block";
  const w = tip.offsetWidth, h = tip.offsetHeight;
  let x = event.clientX + 14, y = event.clientY + 14;
  if (x + w > innerWidth - 8) x = Math.max(8, event.clientX - w - 14);
  if (y + h > innerHeight - 8) y = Math.max(8, event.clientY - h - 14);
  tip.style.left = x + "px";
  tip.style.top = y + "px";
}
const hideTip = () => { tip.style.display = "none"; };
const layerName = (i) => plan.layers[i].name || "no layer";
function stepTip(i) {
  const entry = entryOf.get(i), row = entry === undefined ? null : plan.ledger[entry];
  const lines = ["<b>" + escape(plan.ops[steps.op[i]]) + "</b> <span class=soft>step " + i + ", " + PHASES[steps.phase[i]] + ", " + QUEUES[steps.queue[i]] + " queue</span>"];
  if (steps.node[i]) lines.push(escape(steps.node[i]));
  if (steps.layer[i]) lines.push("<span class=soft>layer</span> " + escape(layerName(steps.layer[i])) + (steps.backward[i] ? " <span class=soft>" + (steps.backward[i] === 2 ? "backward, computed again" : "backward") + "</span>" : ""));
  if (row) {
    lines.push("sends " + bytesText(row.bytes) + " <span class=soft>(" + exact(row.bytes) + " bytes of " + row.wire + (row.sums ? ", summed in " + row.accumulator : "") + (row.copied ? "" : ", a view") + ")</span>");
    lines.push("<span class=soft>" + escape(row.purpose) + "</span> " + escape(row.param || row.node || ""));
  }
  if (waitsOf.has(i)) lines.push("<span class=soft>waits for</span> " + waitsOf.get(i).map((w) => escape(plan.ops[steps.op[w]]) + " (step " + w + ")").join(", "));
  if (hasTimes) lines.push("<span class=soft>estimated</span> " + timeText(endOf.time[i] - startOf.time[i]));
  return lines.join("<br>");
}

// ---- Timeline and memory curve: one horizontal axis ------------------------------------------------------------------------------------------
const timeline = byId("timeline"), curve = byId("curve");
const view = {axis: hasTimes ? "time" : "steps", from: 0, to: 1, cursor: null, step: -1};
const LANE = 46, BAND = 22, AXIS = 22;
let gutterWidth = 74;                      // read once a frame: asking for a width makes the browser lay out the page
const gutter = () => gutterWidth;
const whole = () => (view.axis === "time" ? horizon : nSteps);
const toX = (v, width) => gutter() + (v - view.from) / (view.to - view.from) * (width - gutter());
const fromX = (x, width) => view.from + (x - gutter()) / (width - gutter()) * (view.to - view.from);
function prepare(canvas, height) {
  const width = canvas.clientWidth || canvas.parentNode.clientWidth, scale = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
  c.textBaseline = "middle";
  return [c, width];
}
function fitText(c, text, width) {
  if (c.measureText(text).width <= width) return text;
  for (let n = Math.min(text.length - 1, Math.floor(width / 5)); n > 2; n--) {
    const short = text.slice(0, n) + "…";
    if (c.measureText(short).width <= width) return short;
  }
  return "";
}
function firstEndingAfter(list, ends, value) {
  let low = 0, high = list.length;
  while (low < high) { const mid = (low + high) >> 1; if (ends[list[mid]] <= value) low = mid + 1; else high = mid; }
  return low;
}
function drawLane(c, lane, top, width, palette) {
  const starts = startOf[view.axis], ends = endOf[view.axis], left = gutter();
  const columns = new Float32Array(Math.ceil(width) * KINDS.length);      // of each pixel column: pixels covered by each kind
  let narrow = false;
  for (let k = firstEndingAfter(lane.steps, ends, view.from); k < lane.steps.length; k++) {
    const i = lane.steps[k];
    if (starts[i] >= view.to) break;
    const x0 = Math.max(left, toX(starts[i], width)), x1 = Math.min(width, toX(ends[i], width));
    if (x1 - x0 < 1.2) {
      const column = Math.min(Math.ceil(width) - 1, Math.max(0, Math.floor(x0)));
      columns[column * KINDS.length + kinds[i]] += Math.max(x1 - x0, 0.02);
      narrow = true;
      continue;
    }
    c.fillStyle = palette[kinds[i]];
    c.fillRect(x0, top, Math.max(1, x1 - x0 - (x1 - x0 > 5 ? 0.8 : 0)), LANE - 12);
    if (x1 - x0 > 34) {
      c.fillStyle = "#fff";
      const text = fitText(c, plan.ops[steps.op[i]], x1 - x0 - 8);
      if (text) c.fillText(text, x0 + 5, top + (LANE - 12) / 2);
    }
  }
  if (!narrow) return;
  for (let column = left; column < width; column++) {
    let most = 0, sum = 0, kind = -1;
    for (let k = 0; k < KINDS.length; k++) {
      const covered = columns[column * KINDS.length + k];
      sum += covered;
      if (covered > most) { most = covered; kind = k; }
    }
    if (kind < 0) continue;
    c.globalAlpha = Math.max(0.35, Math.min(1, sum));
    c.fillStyle = palette[kind];
    c.fillRect(column, top, 1, LANE - 12);
    c.globalAlpha = 1;
  }
}
function ticks(from, to, n) {
  const raw = (to - from) / n, power = Math.pow(10, Math.floor(Math.log10(raw))), step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let v = Math.ceil(from / step) * step; v <= to; v += step) out.push(v);
  return out;
}
function drawBands(c, width, bottom, soft, grid) {
  parts.forEach((part, k) => {
    const a = startOf[view.axis][part.from], b = endOf[view.axis][part.to];
    if (b <= view.from || a >= view.to) return;
    const x0 = Math.max(gutter(), toX(a, width)), x1 = Math.min(width, toX(b, width));
    c.fillStyle = grid;
    if (k % 2 === 0) c.fillRect(x0, 0, x1 - x0, bottom);
    c.fillStyle = soft;
    const text = fitText(c, part.name, x1 - x0 - 6);
    if (text) c.fillText(text, x0 + 4, BAND / 2);
  });
}
function drawTimeline() {
  const height = BAND + usedLanes.length * LANE + AXIS, [c, width] = prepare(timeline, height);
  const soft = colour("soft"), palette = KINDS.map(colour);
  drawBands(c, width, height - AXIS, soft, colour("grid"));
  usedLanes.forEach((lane, k) => {
    c.fillStyle = soft;
    c.fillText(lane.name, 0, BAND + k * LANE + (LANE - 12) / 2 + 4);
    drawLane(c, lane, BAND + k * LANE + 4, width, palette);
  });
  c.textAlign = "center";
  for (const v of ticks(view.from, view.to, Math.max(3, Math.floor((width - gutter()) / 100)))) {
    const x = toX(v, width);
    if (x < gutter() + 4 || x > width - 8) continue;
    c.fillStyle = soft;
    c.fillText(view.axis === "time" ? timeText(v) : exact(v), Math.min(x, width - 24), height - AXIS / 2);
  }
  c.textAlign = "left";
  drawWaits(c, width);
  drawCursor(c, width, height - AXIS);
}
// Of the step under the cursor: what it waits for.
function drawWaits(c, width) {
  const at = (i) => BAND + usedLanes.findIndex((lane) => lane.name === QUEUES[steps.queue[i]]) * LANE + 4 + (LANE - 12) / 2;
  c.strokeStyle = colour("text");
  c.lineWidth = 1.5;
  for (const waited of waitsOf.get(view.step) || []) {
    c.beginPath();
    c.moveTo(Math.max(gutter(), toX(endOf[view.axis][waited], width)), at(waited));
    c.lineTo(toX(startOf[view.axis][view.step], width), at(view.step));
    c.stroke();
  }
}
function drawCursor(c, width, height) {
  if (view.cursor === null) return;
  c.fillStyle = colour("text");
  c.globalAlpha = 0.5;
  c.fillRect(toX(view.cursor, width), 0, 1, height);
  c.globalAlpha = 1;
}
// The steps of each pixel column: in the order of the schedule, as memory is planned. Of several the one with most live counts.
function columnSteps(width) {
  const left = gutter(), out = new Int32Array(Math.ceil(width)).fill(-1), starts = startOf[view.axis], ends = endOf[view.axis];
  for (let i = 0; i < nSteps; i++) {
    if (ends[i] < view.from || starts[i] > view.to) continue;
    const x0 = Math.max(left, Math.floor(toX(starts[i], width))), x1 = Math.min(Math.ceil(width) - 1, Math.ceil(toX(ends[i], width)));
    for (let x = x0; x <= x1; x++) if (out[x] < 0 || tier.total[i] > tier.total[out[x]]) out[x] = i;
  }
  for (let x = left + 1; x < out.length; x++) if (out[x] < 0) out[x] = out[x - 1];
  return out;
}
function drawCurve() {
  if (!tier) return;
  const height = curve.clientWidth < 520 ? 170 : 220, [c, width] = prepare(curve, height), left = gutter(), bottom = height - 6, top = 14;
  const most = tier.arena_bytes * 1.04, y = (bytes) => bottom - bytes / most * (bottom - top);
  const soft = colour("soft"), grid = colour("grid");
  c.textAlign = "right";
  let unit = 1;
  while (tier.arena_bytes / unit >= 1024) unit *= 1024;
  for (const level of ticks(0, tier.arena_bytes / unit, 5)) {
    const bytes = level * unit;
    c.fillStyle = grid;
    c.fillRect(left, y(bytes), width - left, 1);
    c.fillStyle = soft;
    c.fillText(bytesText(bytes), left - 8, y(bytes));
  }
  c.textAlign = "left";
  const at = columnSteps(width), below = new Float64Array(at.length);
  tier.bands.forEach((series) => {
    c.fillStyle = colour(categoryColour(series.name));
    c.beginPath();
    c.moveTo(left, y(below[left]));
    for (let x = left; x < at.length; x++) if (at[x] >= 0) c.lineTo(x, y(below[x]));
    for (let x = at.length - 1; x >= left; x--) {
      if (at[x] >= 0) below[x] += series.values[at[x]];
      c.lineTo(x, y(below[x]));
    }
    c.closePath();
    c.globalAlpha = 0.85;
    c.fill();
    c.globalAlpha = 1;
  });
  const peakX = toX((startOf[view.axis][tier.peak] + endOf[view.axis][tier.peak]) / 2, width);
  if (peakX >= left && peakX <= width) {
    c.fillStyle = colour("text");
    c.beginPath();
    c.arc(peakX, y(tier.total[tier.peak]), 3.5, 0, 7);
    c.fill();
    const text = "peak " + bytesText(tier.total[tier.peak]) + ", step " + tier.peak, w = c.measureText(text).width;
    c.fillText(text, peakX + 8 + w < width ? peakX + 8 : peakX - 8 - w, Math.max(8, y(tier.total[tier.peak]) - 2));
  }
  drawCursor(c, width, height);
}
let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; gutterWidth = timeline.clientWidth < 520 ? 64 : 74; drawTimeline(); drawCurve(); });
}
function setRange(from, to) {
  const all = whole(), least = all / Math.max(50, nSteps * 4), width = Math.min(all, Math.max(least, to - from));
  view.from = Math.max(0, Math.min(all - width, from));
  view.to = view.from + width;
  redraw();
}
function stepAt(event) {
  const box = timeline.getBoundingClientRect(), x = event.clientX - box.left, value = fromX(x, box.width);
  view.cursor = value >= view.from && value <= view.to ? value : null;
  const row = Math.floor((event.clientY - box.top - BAND) / LANE), lane = usedLanes[Math.max(0, Math.min(usedLanes.length - 1, row))];
  const k = firstEndingAfter(lane.steps, endOf[view.axis], value);
  return k < lane.steps.length && startOf[view.axis][lane.steps[k]] <= value ? lane.steps[k] : -1;
}
function memoryTip(i) {
  const rows = tier.series.map((s) => [s.name, s.values[i], categoryColour(s.name)]).filter((r) => r[1] > 0).sort((a, b) => b[1] - a[1]);
  return "<b>" + bytesText(tier.total[i]) + "</b> <span class=soft>live per process at step " + i + ", " + escape(plan.ops[steps.op[i]]) +
    (steps.layer[i] ? ", " + escape(layerName(steps.layer[i])) : "") + "</span><table>" +
    rows.map((r) => "<tr><td><span style='color:var(--" + r[2] + ")'>■</span> " + r[0] + "</td><td>" + bytesText(r[1]) + "</td></tr>").join("") + "</table>";
}
function hoverTimeline(event) {
  const i = view.step = stepAt(event);
  redraw();
  if (i >= 0) showTip(event, stepTip(i)); else hideTip();
}
function hoverCurve(event) {
  const box = curve.getBoundingClientRect(), value = fromX(event.clientX - box.left, box.width);
  if (value < view.from || value > view.to) { view.cursor = null; redraw(); hideTip(); return; }
  view.cursor = value;
  redraw();
  let best = 0;
  if (view.axis === "steps") best = Math.min(nSteps - 1, Math.floor(value));
  else for (let i = 0; i < nSteps; i++) if (startOf.time[i] <= value && endOf.time[i] >= startOf.time[best]) best = i;
  showTip(event, memoryTip(best));
}
function attachPlot() {
  for (const canvas of [timeline, curve]) {
    canvas.addEventListener("mousemove", canvas === timeline ? hoverTimeline : hoverCurve);
    canvas.addEventListener("mouseleave", () => { view.cursor = null; view.step = -1; hideTip(); redraw(); });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && !event.shiftKey && !view.zoomed && event.deltaY > 0) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect(), at = fromX(event.clientX - box.left, box.width), span = view.to - view.from;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return setRange(view.from + span * (event.deltaX || event.deltaY) / 800, view.to + span * (event.deltaX || event.deltaY) / 800);
      const factor = Math.exp(event.deltaY / 400);
      setRange(at - (at - view.from) * factor, at + (view.to - at) * factor);
      view.zoomed = view.to - view.from < whole() * 0.999;
      markPart(null);
    }, {passive: false});
    canvas.addEventListener("pointerdown", (down) => {
      const from = view.from, to = view.to, box = canvas.getBoundingClientRect();
      const move = (event) => { const d = (down.clientX - event.clientX) / (box.width - gutter()) * (to - from); setRange(from + d, to + d); };
      const up = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", up); removeEventListener("pointercancel", up); };
      addEventListener("pointermove", move);
      addEventListener("pointerup", up);
      addEventListener("pointercancel", up);
    });
    canvas.addEventListener("dblclick", () => choosePart("all"));
  }
  timeline.addEventListener("keydown", (event) => {
    const span = view.to - view.from, middle = (view.from + view.to) / 2;
    const moves = {ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2]};
    if (moves[event.key]) setRange(view.from + span * moves[event.key][0], view.to + span * moves[event.key][1]);
    else if (event.key === "+" || event.key === "=") setRange(middle - span / 4, middle + span / 4);
    else if (event.key === "-") setRange(middle - span, middle + span);
    else if (event.key === "0") choosePart("all");
    else return;
    event.preventDefault();
  });
}
function choice(id, names, current, choose) {
  byId(id).replaceChildren(...names.map(([key, text]) => {
    const button = element("button", {type: "button", "aria-pressed": String(key === current), "data-key": key}, text);
    button.addEventListener("click", () => choose(key));
    return button;
  }));
}
function markPart(key) {
  for (const button of byId("parts").children) button.setAttribute("aria-pressed", String(button.dataset.key === key));
}
function choosePart(key) {
  if (key === "all") setRange(0, whole());
  else if (key === "step") {
    const first = parts.find((p) => p.name !== "start");
    setRange(first ? startOf[view.axis][first.from] : 0, whole());
  } else {
    const part = parts.find((p) => p.name === key);
    setRange(startOf[view.axis][part.from], endOf[view.axis][part.to]);
  }
  view.zoomed = key !== "all";
  markPart(key);
}
function chooseAxis(axis) {
  view.axis = axis;
  choice("axis", [["time", "Time"], ["steps", "Steps"]], axis, chooseAxis);
  choosePart("step");
}
function drawLegends() {
  const seen = new Set(kinds);
  byId("kinds").replaceChildren(...KINDS.filter((k, i) => seen.has(i)).map((kind) => element("span", {}, element("i", {style: "background:var(--" + kind + ")"}), KIND_TEXT[kind])));
  if (tier) byId("categories").replaceChildren(...tier.bands.map((s) => element("span", {}, element("i", {style: "background:var(--" + categoryColour(s.name) + ")"}), s.name)));
}
function setUpSchedule() {
  byId("schedule-note").textContent = (hasTimes ? "Times are estimates for the machine '" + plan.estimate.machine + "'. " : "No estimate of times: " + plan.no_estimate + ". ") +
    "One micro-batch" + (plan.micro_per_rank > 1 ? " of " + plan.micro_per_rank : "") + " and the update of one rank; all ranks run the same. Scroll up to zoom, drag to move, double-click for all.";
  drawLegends();
  if (hasTimes) choice("axis", [["time", "Time"], ["steps", "Steps"]], view.axis, chooseAxis);
  else byId("axis").remove();
  const names = [...new Set(parts.map((p) => p.name))];
  choice("parts", [["all", "All"], ["step", "Step"], ...names.map((n) => [n, n[0].toUpperCase() + n.slice(1)])], "step", choosePart);
  byId("zoom").replaceChildren(...[["−", 2], ["+", 0.5]].map(([text, factor]) => {
    const button = element("button", {type: "button", "aria-label": factor < 1 ? "Zoom in" : "Zoom out"}, text);
    button.addEventListener("click", () => {
      const middle = (view.from + view.to) / 2, half = (view.to - view.from) * factor / 2;
      setRange(middle - half, middle + half);
      view.zoomed = true;
      markPart(null);
    });
    return button;
  }));
  attachPlot();
  choosePart("step");
  new ResizeObserver(() => redraw()).observe(byId("plot"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

// ---- Communication ------------------------------------------------------------------------------------------------------------------------
function bars(id, rows, total, colourOf) {
  const box = byId(id);
  for (const [name, bytes, note] of rows) {
    const fill = element("i", {style: "width:" + (total > 0 ? 100 * bytes / total : 0) + "%;background:var(--" + colourOf(name) + ")"});
    box.append(element("div", {class: "name"}, name),
      element("div", {class: "number", title: exact(bytes) + " bytes"}, bytesText(bytes), element("small", {}, note || share(bytes, total))),
      element("div", {class: "bar", title: exact(bytes) + " bytes"}, fill));
  }
}
function groupLedger(key) {
  const sums = new Map();
  for (const row of plan.ledger) sums.set(row[key], (sums.get(row[key]) || 0) + row.bytes * row.times);
  return [...sums].sort((a, b) => b[1] - a[1]);
}
function drawAccount() {
  const labels = {least: "Least", more: "+", formula: "Formula of the stage", saved: "− saved", sent: "Sent"};
  const tones = {least: "forward", more: "sum", formula: "other", saved: "update", sent: "gather"};
  const top = Math.max(...plan.account.map((a) => a.bytes), 1);
  let running = 0;
  for (const line of plan.account) {
    let left = 0;
    if (line.kind === "more") { left = running; running += line.bytes; }
    else if (line.kind === "saved") { running -= line.bytes; left = running; }
    else running = line.bytes;
    const track = element("div", {class: "track"}, element("i", {style: "left:" + 100 * left / top + "%;width:" + 100 * line.bytes / top + "%;background:var(--" + tones[line.kind] + ")"}));
    const why = element("div", {class: "why"}, line.why + " ");
    if (line.term) why.append(element("code", {}, line.term));
    byId("account").append(element("div", {class: "account"}, element("div", {class: "label"}, labels[line.kind]),
      element("div", {class: "amount"}, exact(line.bytes)), track, why));
  }
}
function setUpCommunication() {
  byId("comm-note").textContent = "Logical bytes that each of " + plan.ranks + " ranks sends in a step: " + exact(sent) + "; " + exact(plan.copied) +
    " of them are copied, the rest are views of memory that the ranks share. ψ = " + exact(plan.psi) + " bytes of trainable parameters, k = " + plan.micro_per_rank + " micro-batches, r = " + plan.reductions + " sums.";
  drawAccount();
  const tones = {"gradients": "sum", "parameters for forward": "gather", "parameters for backward": "gather", "updated parameters": "gather"};
  bars("causes", groupLedger("purpose"), sent, (name) => tones[name] || "other");
  bars("collectives", groupLedger("kind"), sent, (name) => (/Reduce/.test(name) ? "sum" : /Gather/.test(name) ? "gather" : "other"));
  bars("axes", groupLedger("axis"), sent, () => "accent");
}

// ---- Layers and collectives ---------------------------------------------------------------------------------------------------------------
const near = (a, b) => Math.abs(a - b) <= 64;
const alike = (a, b) => a.family && a.family === b.family && b.params === a.params && a.elems === b.elems && near(a.gathered, b.gathered) && near(a.reduced, b.reduced);
const MOST_BOXES = 400;
function boxesOf(folded) {
  const boxes = [];
  for (let i = 1; i < plan.layers.length; i++) {
    const layer = plan.layers[i], last = boxes[boxes.length - 1];
    if (!layer.params && !layer.sent) continue;
    if (folded && last && layer.index === plan.layers[last.to].index + 1 && alike(plan.layers[last.from], layer)) { last.to = i; last.n++; }
    else boxes.push({from: i, to: i, n: 1});
  }
  return boxes;
}
function svg(tag, attributes, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  return e;
}
function shorten(text, n) { return text.length <= n ? text : "…" + text.slice(text.length - n + 1); }
function layerBox(box, x, y, w) {
  const layer = plan.layers[box.from], g = svg("g", {class: "layer"}), h = 56;
  const name = box.n > 1 ? layer.family + layer.index + "–" + plan.layers[box.to].index : layer.name;
  if (box.n > 1) g.append(svg("rect", {class: "stack", x: x + 5, y: y + 5, width: w, height: h, rx: 7}));
  g.append(svg("rect", {class: "box", x, y, width: w, height: h, rx: 7}));
  g.append(svg("text", {x: x + w / 2, y: y + 23, "text-anchor": "middle", "font-weight": 600, "font-size": 13}, shorten(name, Math.floor(w / 7.6))));
  g.append(svg("text", {class: "soft", x: x + w / 2, y: y + 42, "text-anchor": "middle"}, (layer.elems >= 1e6 ? (layer.elems / 1e6).toFixed(1) + " M" : exact(layer.elems)) + (box.n > 1 ? " each, × " + box.n : "")));
  for (const [kind, bytes, up] of [["gather", layer.gathered, true], ["sum", layer.reduced, false]]) {
    if (!bytes) continue;
    const ty = up ? y - 42 : y + h + 22, label = bytesText(bytes) + (box.n > 1 ? " each" : "");
    g.append(svg("path", {class: "line-" + kind, d: up ? `M${x + w / 2} ${ty + 20}V${y - 3}` : `M${x + w / 2} ${y + h + (box.n > 1 ? 5 : 0)}V${ty - 1}`, "marker-end": "url(#head-" + kind + ")"}));
    g.append(svg("rect", {class: "tag-" + kind, x: x + w / 2 - 52, y: ty, width: 104, height: 20, rx: 10}));
    g.append(svg("text", {class: "on", x: x + w / 2, y: ty + 14, "text-anchor": "middle"}, label));
  }
  g.addEventListener("mousemove", (event) => showTip(event, "<b>" + escape(name) + "</b><br>" + layer.params + " parameters, " + exact(layer.elems) + " elements" + (box.n > 1 ? " in each of " + box.n : "") +
    "<br><span class=soft>gathered</span> " + exact(layer.gathered) + " bytes<br><span class=soft>summed</span> " + exact(layer.reduced) + " bytes<br><span class=soft>steps of a micro-batch</span> " + layer.steps));
  g.addEventListener("mouseleave", hideTip);
  return g;
}
let folded = true;
function drawGraph() {
  const all = boxesOf(folded), boxes = all.slice(0, MOST_BOXES), width = byId("graph").clientWidth - 4, w = Math.min(176, Math.max(130, width - 48)), gap = 36, rowHeight = 178, inset = 20;
  const perRow = Math.max(1, Math.floor((width + gap - inset - 12) / (w + gap))), rows = Math.ceil(boxes.length / perRow) || 1;
  const root = svg("svg", {width: Math.max(width, w + 16), height: rows * rowHeight + (all.length > boxes.length ? 24 : 0), role: "img", "aria-label": "Layers and collectives"});
  const defs = svg("defs", {});
  for (const [id, tone] of [["gather", "gather"], ["sum", "sum"], ["flow", "faint"]]) {
    const marker = svg("marker", {id: "head-" + id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto"});
    marker.append(svg("path", {d: "M0 0L8 4L0 8z", style: "fill:var(--" + tone + ")"}));
    defs.append(marker);
  }
  root.append(defs);
  boxes.forEach((box, i) => {
    const x = inset + (i % perRow) * (w + gap), y = 50 + Math.floor(i / perRow) * rowHeight;
    if (i + 1 < boxes.length) {
      const last = (i + 1) % perRow === 0;
      root.append(svg("path", {class: "flow", "marker-end": "url(#head-flow)", d: last ?
        `M${x + w} ${y + 28}h14V${y + 112}H${6}V${y + rowHeight + 28}H${inset - 2}` : `M${x + w + (box.n > 1 ? 5 : 0)} ${y + 28}H${x + w + gap - 2}`}));
    }
    root.append(layerBox(box, x, y, w));
  });
  if (all.length > boxes.length) root.append(svg("text", {class: "soft", x: 4, y: rows * rowHeight + 14}, "… " + (all.length - boxes.length) + " more layers; the ledger below has all of them"));
  byId("graph").replaceChildren(root);
}
function chooseFold(key) {
  folded = key === "folded";
  choice("fold", [["folded", "Alike as one"], ["all", "Each layer"]], key, chooseFold);
  drawGraph();
}

// ---- Tables -------------------------------------------------------------------------------------------------------------------------------
// Rows of 29 pixels; only those in sight are in the document.
function table(box, columns, rows, options = {}) {
  const ROW = 29, state = {sort: options.sort || null, down: true, rows};
  const head = element("thead"), body = element("tbody");
  box.replaceChildren(element("table", {}, head, body));
  function drawHead() {
    head.replaceChildren(element("tr", {}, ...columns.map((column, k) => {
      const mark = state.sort === k ? (state.down ? " ↓" : " ↑") : "", button = element("button", {type: "button"}, column.title + mark);
      button.addEventListener("click", () => { state.down = state.sort === k ? !state.down : Boolean(column.number); state.sort = k; sort(); });
      return element("th", {class: column.number ? "n" : "", "aria-sort": state.sort === k ? (state.down ? "descending" : "ascending") : "none"}, button);
    })));
  }
  function sort() {
    if (state.sort !== null) {
      const value = columns[state.sort].value, sign = state.down ? -1 : 1;
      state.rows = [...state.rows].sort((a, b) => { const x = value(a), y = value(b); return sign * (x < y ? -1 : x > y ? 1 : 0); });
    }
    drawHead();
    box.scrollTop = 0;
    drawRows();
  }
  function drawRows() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 6), last = Math.min(state.rows.length, first + Math.ceil(box.clientHeight / ROW) + 14), out = [];
    if (first) out.push(element("tr", {style: "height:" + first * ROW + "px"}));
    for (const row of state.rows.slice(first, last))
      out.push(element("tr", {class: "row"}, ...columns.map((column) => {
        const text = column.text ? column.text(row) : column.value(row), cell = element("td", {class: column.number ? "n" : ""});
        if (column.tone) cell.append(element("i", {class: "dot", style: "background:var(--" + column.tone(row) + ")"}));
        cell.append(text === null || text === undefined ? "" : String(text));
        if (!column.number) cell.title = cell.textContent;
        return cell;
      })));
    if (!state.rows.length) out.push(element("tr", {class: "empty"}, element("td", {colspan: columns.length}, "Nothing matches.")));
    if (last < state.rows.length) out.push(element("tr", {style: "height:" + (state.rows.length - last) * ROW + "px"}));
    body.replaceChildren(...out);
  }
  box.addEventListener("scroll", () => requestAnimationFrame(drawRows));
  sort();
  return {set(next) { state.rows = next; sort(); }};
}
function setUpLedger() {
  const columns = [
    {title: "Step", number: true, value: (r) => r.step, text: (r) => exact(r.step)},
    {title: "Phase", value: (r) => PHASES[steps.phase[r.step]]},
    {title: "Collective", value: (r) => r.op, tone: (r) => (r.sums ? "sum" : "gather")},
    {title: "Axis", value: (r) => r.axis},
    {title: "Bytes each", number: true, value: (r) => r.bytes, text: (r) => exact(r.bytes)},
    {title: "Times", number: true, value: (r) => r.times},
    {title: "Copied", number: true, value: (r) => r.copied, text: (r) => (r.copied ? exact(r.copied) : r.bytes ? "view" : "0")},
    {title: "Wire", value: (r) => r.wire},
    {title: "Sums in", value: (r) => r.accumulator || ""},
    {title: "Bucket", number: true, value: (r) => (r.bucket === null ? -1 : r.bucket), text: (r) => (r.bucket === null ? "" : r.bucket)},
    {title: "For", value: (r) => r.purpose},
    {title: "Layer", value: (r) => layerName(steps.layer[r.step])},
    {title: "Parameter or node", value: (r) => r.param || r.node || ""},
  ];
  if (hasTimes) columns.splice(7, 0, {title: "Estimate", number: true, value: (r) => endOf.time[r.step] - startOf.time[r.step], text: (r) => timeText(endOf.time[r.step] - startOf.time[r.step])});
  byId("ledger-table").classList.add("wide");
  const shown = table(byId("ledger-table"), columns, plan.ledger);
  const texts = plan.ledger.map((r) => [r.op, r.kind, r.purpose, r.param, r.node, layerName(steps.layer[r.step]), r.wire, "step " + r.step, "bucket " + r.bucket].join(" ").toLowerCase());
  byId("purpose").append(element("option", {value: ""}, "All causes"), ...groupLedger("purpose").map(([name]) => element("option", {value: name}, name)));
  const update = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean), purpose = byId("purpose").value;
    const rows = plan.ledger.filter((r, i) => (!purpose || r.purpose === purpose) && words.every((w) => texts[i].includes(w)));
    const sum = rows.reduce((total, r) => total + r.bytes * r.times, 0);
    byId("ledger-note").textContent = exact(rows.length) + (rows.length === plan.ledger.length ? "" : " of " + exact(plan.ledger.length)) + " transfers, " + exact(sum) + " bytes a step (" + bytesText(sum) +
      (sum === sent ? "): the sum of the ledger is what is sent" : ", " + share(sum, sent) + " of what is sent)");
    shown.set(rows);
  };
  byId("filter").addEventListener("input", update);
  byId("purpose").addEventListener("input", update);
  update();
}
function setUpMemory() {
  if (!tier) return;
  const i = tier.peak;
  byId("memory-note").textContent = "Most is live at step " + i + ", " + plan.ops[steps.op[i]] + (steps.layer[i] ? " of " + layerName(steps.layer[i]) + (steps.backward[i] ? " backward" : "") : "") + ": " + bytesText(tier.total[i]) +
    " per process of " + plan.ranks_per_process + " ranks; " + bytesText(tier.arena_bytes) + " are reserved, " +
    (tier.arena_bytes / tier.lower_bound_bytes).toFixed(4) + " of the lower bound: what no other places of the same buffers could go below.";
  for (const t of tiers) {
    const rows = t.series.map((s) => [s.name, s.values[t.peak]]).filter((r) => r[1] > 0), padding = t.arena_bytes - t.total[t.peak];
    rows.sort((a, b) => b[1] - a[1]);
    if (padding > 0) rows.push(["padding", padding]);
    if (tiers.length > 1) byId("peak").append(element("h3", {style: "grid-column:1/-1;margin:6px 0 0"}, t.tier));
    bars("peak", rows, t.arena_bytes, categoryColour);
  }
  table(byId("buffers"), [
    {title: "Buffer", value: (b) => b.name},
    {title: "Bytes", number: true, value: (b) => b.bytes, text: (b) => exact(b.bytes)},
    {title: "Copies", number: true, value: (b) => (b.scope === "rank" ? plan.ranks_per_process : 1)},
    {title: "Category", value: (b) => b.category},
    {title: "Life", value: (b) => (b.life ? b.life[0] : -1), text: (b) => (b.life ? b.life[0] + "–" + b.life[1] : "always")},
  ], plan.largest_buffers);
}

for (const t of tiers) {
  t.total = new Float64Array(nSteps);
  for (const s of t.series) for (let i = 0; i < nSteps; i++) t.total[i] += s.values[i];
  t.bands = bandsOf(t);
}
setUpSchedule();
setUpCommunication();
chooseFold("folded");
setUpLedger();
setUpMemory();
let graphWidth = 0;
new ResizeObserver(() => { if (byId("graph").clientWidth !== graphWidth) { graphWidth = byId("graph").clientWidth; drawGraph(); } }).observe(byId("graph"));
