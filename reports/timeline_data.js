// Unpacks a run's events: a zlib stream of columns, each stored as byte planes (see packing.py).

// The bytes of a block.
async function inflate(blob) {
  const text = atob(blob);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// One column of n numbers: lowest bytes first.
function column(bytes, [offset, planes, n]) {
  const values = planes < 4 ? new Int32Array(n) : new Float64Array(n);
  let scale = 1;
  for (let plane = 0; plane < planes; plane++, scale *= 256) {
    const at = offset + plane * n;
    for (let i = 0; i < n; i++) values[i] += bytes[at + i] * scale;
  }
  return values;
}

// A column that was stored as differences.
function summed(bytes, spec) {
  const values = Float64Array.from(column(bytes, spec));
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  return values;
}

// The first index whose value is above `limit`, in a sorted array.
function above(values, limit, low = 0) {
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle; else low = middle + 1;
  }
  return low;
}

// One row of the canvas: events of one lane and depth, in order; none overlaps the next by much.
class Row {
  constructor(lane, kind, table, size) {
    Object.assign(this, {lane, kind, table, n: 0, y: 0, height: 0});
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.index = new Int32Array(size); // in the table
    this.covered = new Float64Array(size + 1); // time covered by the events before
  }
  add(index, start, length, covered = length) {
    const i = this.n++;
    this.start[i] = start;
    this.end[i] = start + length;
    this.index[i] = index;
    this.covered[i + 1] = this.covered[i] + covered;
  }
  // The first event that ends after a time.
  from(time) {
    let i = above(this.end, time);
    while (i > 0 && this.end[i - 1] > time) i--; // small overlaps may leave ends unsorted
    return i;
  }
}

const HEIGHTS = {idle: 26, stream: 20, calls: 16, ops: 14, frames: 14};
const TABLES = ["stream", "calls", "ops", "frames"];

// All of a run's events, unpacked: tables, rows by lane, idle pieces by device, the overview.
async function unpack(data) {
  const bytes = await inflate(data.blob);
  const run = {...data, rows: []};
  const tables = {};
  for (const kind of TABLES) {
    const packed = data.tables[kind];
    const table = tables[kind] = {start: summed(bytes, packed.start)};
    for (const key of ["dur", "name", "lane", "depth", "many", "busy", "class"]) table[key] = column(bytes, packed[key]);
    for (const key of ["call", "site"]) if (packed[key]) table[key] = column(bytes, packed[key]);
  }
  run.tables = tables;
  run.parts = unpackParts(bytes, data.tables.parts);
  tables.idle = run.parts;
  run.edges = summed(bytes, data.overview.edges);
  run.overview = data.overview.devices.map(
    (series) => series.map((one) => ({series: one.series, ns: column(bytes, one.column)})));
  run.marks = {};
  for (const [name, each] of Object.entries(data.findings)) {
    run.marks[name] = {calls: column(bytes, each.calls), parts: column(bytes, each.parts), spots: each.spots};
  }
  data.lanes.forEach((lane, number) => {
    lane.rows = lane.kind === "idle" ? [idleRow(run, lane, number)] : [];
  });
  for (const kind of TABLES) fillRows(run, kind, tables[kind]);
  run.rows = data.lanes.flatMap((lane) => lane.rows);
  return run;
}

// Idle pieces: `start` begins anew with each device.
function unpackParts(bytes, packed) {
  const parts = {first: packed.first, start: Float64Array.from(column(bytes, packed.start))};
  for (const key of ["dur", "cause", "site", "detail"]) parts[key] = column(bytes, packed[key]);
  for (let device = 0; device + 1 < parts.first.length; device++) {
    for (let i = parts.first[device] + 1; i < parts.first[device + 1]; i++) parts.start[i] += parts.start[i - 1];
  }
  return parts;
}

function idleRow(run, lane, number) {
  const first = run.parts.first[lane.device], last = run.parts.first[lane.device + 1];
  const row = new Row(number, "idle", run.parts, last - first);
  for (let i = first; i < last; i++) row.add(i, run.parts.start[i], run.parts.dur[i]);
  return row;
}

function fillRows(run, kind, table) {
  const sizes = run.lanes.map(() => []);
  const n = table.start.length;
  for (let i = 0; i < n; i++) {
    const of = sizes[table.lane[i]];
    of[table.depth[i]] = (of[table.depth[i]] || 0) + 1;
  }
  run.lanes.forEach((lane, number) => {
    if (lane.kind === kind) lane.rows = Array.from(sizes[number], (size) => new Row(number, kind, table, size || 0));
  });
  for (let i = 0; i < n; i++) {
    const covered = table.many[i] ? table.busy[i] : table.dur[i];
    run.lanes[table.lane[i]].rows[table.depth[i]].add(i, table.start[i], table.dur[i], covered);
  }
}
