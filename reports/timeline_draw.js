// Draws a run's events on a canvas. What is narrower than a pixel is merged: one column of that pixel,
// as opaque as the events cover it. A frame so costs as much as there are pixels, not events.

const STRIP = 15; // pixels above a lane's rows, for its name
const AXIS = 20; // pixels for the time at the top
const PATTERNS = [null, "diagonal", "dots", "bars", "cross"];

// Colours of the present theme, from the style sheet.
function palette() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue("--" + name).trim();
  const names = ["page", "card", "text", "dim", "line", "soft", "mark", "accent", "kernels", "copies", "queue",
    "launch", "wait", "memory", "build", "host", "unknown", "frame", "op", "hatch"];
  return Object.fromEntries(names.map((name) => [name, get(name)]));
}

// A fill with a family's colour and a pattern, so that causes differ without colour.
function patterned(context, colour, kind, hatch) {
  if (!kind) return colour;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const draw = tile.getContext("2d");
  draw.fillStyle = colour;
  draw.fillRect(0, 0, 8, 8);
  draw.strokeStyle = draw.fillStyle = hatch;
  draw.lineWidth = 2;
  draw.beginPath();
  if (kind === "diagonal" || kind === "cross") { draw.moveTo(-2, 6); draw.lineTo(6, -2); draw.moveTo(2, 10); draw.lineTo(10, 2); }
  if (kind === "cross") { draw.moveTo(-2, 2); draw.lineTo(6, 10); draw.moveTo(2, -2); draw.lineTo(10, 6); }
  if (kind === "bars") { draw.moveTo(4, 0); draw.lineTo(4, 8); }
  draw.stroke();
  if (kind === "dots") draw.fillRect(3, 3, 3, 3);
  return context.createPattern(tile, "repeat");
}

// A time in ns with three digits; `step` is what a reader must be able to tell apart.
function duration(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    if (Math.abs(ns) >= size * 0.9995) {
      const value = ns / size;
      return value.toFixed(value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2) + " " + unit;
    }
  }
  return ns.toFixed(0) + " ns";
}

class Painter {
  constructor(run, canvas) {
    this.run = run;
    this.canvas = canvas;
    this.context = canvas.getContext("2d", {alpha: false});
    this.recolour();
  }

  // Colours again, after the theme changed.
  recolour() {
    const colours = this.colours = palette();
    this.causes = this.run.causes.map(({look}) => {
      const [family, number] = look.split(" ");
      return {flat: colours[family], rich: patterned(this.context, colours[family], PATTERNS[+number[1]], colours.hatch)};
    });
  }

  // Fit the canvas to its box; width and height in CSS pixels.
  resize(width, height) {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    Object.assign(this, {width, height});
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    this.canvas.style.height = height + "px";
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(time) { return (time - this.low) * this.scale; }

  // One frame: the rows between `top` and the canvas's height, of the time from low to high.
  draw({low, high, top, lanes, outlined, chosen, hovered}) {
    Object.assign(this, {low, high, top, scale: this.width / (high - low)});
    const {context, colours} = this;
    context.fillStyle = colours.card;
    context.fillRect(0, 0, this.width, this.height);
    this.steps();
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const ticks = this.ticks();
    context.fillStyle = colours.line;
    for (const [x] of ticks) context.fillRect(x, AXIS, 1, this.height);
    this.writing = colours.card;
    for (const lane of lanes) {
      if (lane.y + lane.height < top || lane.y > top + this.height) continue;
      for (const row of lane.rows) {
        const y = row.y - top;
        if (y + row.height < AXIS || y > this.height) continue;
        if (row.kind === "idle") this.idle(row, lane, y); else this.row(row, y);
      }
      this.label(lane);
    }
    this.arrows(lanes, chosen, hovered);
    for (const one of outlined) this.outline(one, colours.mark, 2);
    if (hovered) this.outline(hovered, colours.text, 1);
    if (chosen) this.outline(chosen, colours.text, 2.5);
    this.axis(ticks);
  }

  label(lane) {
    const {context, colours} = this;
    const y = lane.y - this.top;
    context.fillStyle = colours.soft;
    context.fillRect(0, y, this.width, STRIP - 1);
    context.fillStyle = colours.text;
    context.fillText(lane.label, 5, y + STRIP / 2);
  }

  // The steps: every other one shaded, what does not count paler.
  steps() {
    const {context, colours} = this;
    this.run.steps.forEach(([start, end, , counts], number) => {
      if (end <= this.low || start >= this.high || !counts || number % 2) return;
      context.fillStyle = colours.page;
      context.fillRect(this.x(start), 0, (end - start) * this.scale, this.height);
    });
  }

  colourOf(kind, table, i) {
    const colours = this.colours;
    if (kind === "stream") return table.class[i] === 1 || table.class[i] === 2 ? colours.copies : colours.kernels;
    if (kind === "calls") return this.causes[this.run.roles[table.class[i]]].flat;
    if (kind === "ops") return table.class[i] === 0 ? colours.op : colours.queue;
    return table.class[i] ? colours.host : colours.frame;
  }

  row(row, y) {
    const {context, scale, low, high, width} = this;
    const {start, end, index, covered, table, n, kind} = row;
    const h = row.height - 1;
    let i = row.from(low);
    let fill = "";
    let run = null; // merged pixels that are not painted yet
    const flush = () => {
      if (!run) return;
      if (run.colour !== fill) context.fillStyle = fill = run.colour;
      context.globalAlpha = 0.3 + 0.7 * run.level / 8;
      context.fillRect(run.start, run.merged ? y + h / 2 : y, run.end - run.start, run.merged ? h / 2 : h);
      run = null;
    };
    while (i < n && start[i] < high) {
      const x = (start[i] - low) * scale;
      const w = (end[i] - start[i]) * scale;
      if (w >= 1.5) {
        flush();
        const from = Math.max(x, -1), to = Math.min(x + w, width + 1);
        const colour = this.colourOf(kind, table, index[i]);
        if (colour !== fill) context.fillStyle = fill = colour;
        const merged = table.many[index[i]] > 0;
        context.globalAlpha = merged ? 0.3 + 0.7 * table.busy[index[i]] / table.dur[index[i]] : 1;
        // what was merged is half as high, so that it is not taken for one event
        context.fillRect(from, merged ? y + h / 2 : y, Math.max(to - from - 0.5, 1), merged ? h / 2 : h);
        if (to - from > 28 && !merged) {
          this.text(this.nameOf(kind, index[i]), from + 3, y + h / 2, to - from - 6);
          fill = "";
        }
        i++;
        continue;
      }
      // all that begins in this pixel, up to an event that is wider
      const pixel = Math.max(0, Math.floor(x));
      let j = above(start, low + (pixel + 1) / scale - 1e-9, i + 1);
      if (j - 1 > i && (end[j - 1] - start[j - 1]) * scale >= 1.5) j--;
      // neighbours that look the same become one rectangle: painting costs by the call
      const colour = this.colourOf(kind, table, index[i]);
      const level = Math.min(8, Math.ceil((covered[j] - covered[i]) * scale * 8));
      const merged = table.many[index[i]] > 0;
      if (run && run.colour === colour && run.level === level && run.end === pixel && run.merged === merged) run.end = pixel + 1;
      else {
        flush();
        run = {colour, level, merged, start: pixel, end: pixel + 1};
      }
      i = j;
    }
    flush();
    context.globalAlpha = 1;
  }

  nameOf(kind, i) {
    const {run} = this, table = run.tables[kind];
    return table.many[i] ? table.many[i].toLocaleString("en") + " merged" : run.names[table.name[i]];
  }

  // A name, cut to fit: measuring text is slow, a character of this font is about 6 pixels wide.
  text(name, x, y, room) {
    const most = Math.floor(room / 5.8);
    this.context.fillStyle = this.writing;
    this.context.globalAlpha = 1;
    this.context.fillText(name.length > most ? name.slice(0, most) : name, x, y, room);
  }

  // A device: busy underneath, idle pieces by cause; below a pixel, stacked by their share of it.
  idle(row, lane, y) {
    const {context, scale, low, high, width, run, causes} = this;
    const [first, last] = run.windows[lane.device];
    const h = row.height - 1;
    context.fillStyle = this.colours.kernels;
    const from = Math.max(0, this.x(first)), to = Math.min(width, this.x(last));
    if (to > from) context.fillRect(from, y, to - from, h);
    if (run.detail) this.bins(run.overview[lane.device] || [], y, h, (time) => time < run.detail[0] || time >= run.detail[1]);
    const sums = new Float64Array(causes.length);
    let pixel = -1;
    const flush = () => {
      let from = y; // work stays below, as in the overview
      for (let cause = sums.length - 1; cause >= 0; cause--) {
        if (!sums[cause]) continue;
        const tall = Math.min(1, sums[cause] * scale) * h;
        context.fillStyle = causes[cause].flat;
        context.fillRect(pixel, from, 1, tall);
        from += tall;
        sums[cause] = 0;
      }
    };
    const {start, end, index, table, n} = row;
    for (let i = row.from(low); i < n && start[i] < high; i++) {
      const x = (start[i] - low) * scale;
      const w = (end[i] - start[i]) * scale;
      const cause = table.cause[index[i]];
      if (w < 1.5) {
        const at = Math.floor(x);
        if (at !== pixel) { if (pixel >= 0) flush(); pixel = at; }
        sums[cause] += end[i] - start[i];
        continue;
      }
      if (pixel >= 0) flush();
      pixel = -1;
      const left = Math.max(x, 0), right = Math.min(x + w, width);
      context.fillStyle = w > 4 ? causes[cause].rich : causes[cause].flat;
      context.fillRect(left, y, right - left, h);
      if (right - left > 44) this.boxed(run.causes[cause].name, left + 3, y + h / 2, right - left - 6);
    }
    if (pixel >= 0) flush();
  }

  // A word on a pattern: on a plate, so that it can be read.
  boxed(word, x, y, room) {
    const {context, colours} = this;
    const wide = Math.min(room, context.measureText(word).width);
    context.fillStyle = colours.card;
    context.fillRect(x - 1, y - 7, wide + 3, 14);
    context.fillStyle = colours.text;
    context.fillText(word, x, y, room);
  }

  // Bins of the overview as stacked columns, where `shows` says so.
  bins(series, y, h, shows) {
    const {context, run} = this, {edges} = run;
    for (let bin = above(edges, this.low) - 1; bin >= 0 && bin + 1 < edges.length && edges[bin] < this.high; bin++) {
      if (!shows(edges[bin])) continue;
      const left = this.x(edges[bin]), wide = this.x(edges[bin + 1]) - left;
      let bottom = y + h;
      for (const {series: number, ns} of series) {
        const tall = h * ns[bin] / (edges[bin + 1] - edges[bin]);
        if (!tall) continue;
        context.fillStyle = number === -1 ? this.colours.kernels : number === -2 ? this.colours.copies : this.causes[number].flat;
        context.fillRect(left, bottom - tall, wide + 0.3, tall);
        bottom -= tall;
      }
    }
  }

  // Where a table's event stands on the canvas; null where its lane is not shown.
  place({kind, index}) {
    const {run} = this;
    if (kind === "idle") {
      const row = run.rows.find((one) => one.kind === "idle" && index >= run.parts.first[run.lanes[one.lane].device]
        && index < run.parts.first[run.lanes[one.lane].device + 1]);
      return row && row.height ? {row, x: this.x(run.parts.start[index]), w: run.parts.dur[index] * this.scale} : null;
    }
    const table = run.tables[kind];
    const row = run.lanes[table.lane[index]].rows[table.depth[index]];
    return row && row.height ? {row, x: this.x(table.start[index]), w: table.dur[index] * this.scale} : null;
  }

  outline(event, colour, thick) {
    const at = this.place(event);
    if (!at || at.x + at.w < 0 || at.x > this.width) return;
    const {context} = this, y = at.row.y - this.top;
    const left = Math.max(at.x, -4), right = Math.min(at.x + Math.max(at.w, 3), this.width + 4);
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.strokeRect(left - 1, y - 1, right - left + 2, at.row.height + 1);
  }

  // From launches to kernels: of the chosen and the hovered event, and of all while few are in view.
  arrows(lanes, chosen, hovered) {
    const {run} = this, {call} = run.tables.stream;
    const links = new Set();
    for (const one of [chosen, hovered]) {
      if (one && one.kind === "stream") links.add(one.index);
      if (one && one.kind === "calls") this.launchedBy(one.index, 50).forEach((op) => links.add(op));
    }
    const strong = links.size;
    for (const lane of lanes) {
      if (lane.kind !== "stream") continue;
      for (const row of lane.rows) {
        const first = row.from(this.low), last = above(row.start, this.high);
        if (last - first > 60 || !row.height) continue;
        for (let i = first; i < last; i++) links.add(row.index[i]);
      }
    }
    let number = 0;
    for (const op of links) {
      const bold = number++ < strong;
      if (!call[op]) continue;
      const from = this.place({kind: "calls", index: call[op] - 1}), to = this.place({kind: "stream", index: op});
      if (from && to) this.arrow(from, to, bold);
    }
  }

  arrow(from, to, bold) {
    const {context, colours, top} = this;
    const x1 = from.x + Math.min(from.w, 4), x2 = Math.max(to.x, -20);
    const y1 = from.row.y - top, y2 = to.row.y - top + to.row.height - 1;
    if (Math.max(x1, x2) < -50 || Math.min(x1, x2) > this.width + 50) return;
    context.strokeStyle = context.fillStyle = bold ? colours.text : colours.dim;
    context.globalAlpha = bold ? 1 : 0.55;
    context.lineWidth = bold ? 2 : 1;
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2);
    context.stroke();
    context.beginPath();
    context.moveTo(x2, y2); context.lineTo(x2 - 3.5, y2 + 6); context.lineTo(x2 + 3.5, y2 + 6);
    context.fill();
    context.globalAlpha = 1;
  }

  // GPU ops that a call launched: theirs are the first ones after it.
  launchedBy(index, most) {
    const {call} = this.run.tables.stream;
    const found = [];
    for (let op = 0; op < call.length && found.length < most; op++) if (call[op] === index + 1) found.push(op);
    return found;
  }

  // [x, text] of round times, far enough apart to be read.
  ticks() {
    const room = (this.high - this.low) / Math.max(2, this.width / 110);
    const power = 10 ** Math.floor(Math.log10(room));
    const tick = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= room) || room;
    const [unit, size] = this.high >= 1e9 ? ["s", 1e9] : this.high >= 1e6 ? ["ms", 1e6] : ["us", 1e3];
    const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(tick / size))));
    const ticks = [];
    for (let time = Math.ceil(this.low / tick) * tick; time < this.high; time += tick) {
      ticks.push([Math.round(this.x(time)), (time / size).toFixed(digits) + " " + unit]);
    }
    return ticks;
  }

  axis(ticks) {
    const {context, colours} = this;
    context.fillStyle = colours.card;
    context.fillRect(0, 0, this.width, AXIS - 1);
    for (const [x, text] of ticks) {
      context.fillStyle = colours.line;
      context.fillRect(x, AXIS - 6, 1, 5);
      context.fillStyle = colours.dim;
      context.fillText(text, x + 3, AXIS / 2);
    }
  }
}
