// The timeline of one run: what is in view, and what mouse, fingers, keys and findings do to it.

const SHORTEST = 200; // ns in view, at the least
const KINDS = {idle: "Idle time", stream: "GPU streams", calls: "CUDA calls", ops: "Framework ops", frames: "Python"};

class Timeline {
  // `changed` is called when what the address keeps has changed.
  constructor(run, section, changed) {
    this.run = run;
    this.changed = changed;
    this.find = (selector) => section.querySelector(selector);
    this.canvas = this.find("canvas.lanes");
    this.box = this.find(".lanes-view");
    this.strip = this.find("canvas.overview");
    this.tip = this.find(".tip");
    this.painter = new Painter(run, this.canvas);
    this.hidden = new Set(); // kinds of lanes
    // begin with one step: all of them rarely show anything
    const [low, high] = run.steps.find((step) => step[3]) || run.windows[0] || [0, run.length];
    const room = (high - low) * 0.02;
    this.low = Math.max(0, low - room);
    this.high = Math.min(run.length, Math.max(high + room, this.low + 1));
    Object.assign(this, {finding: null, spot: 0, outlined: [], chosen: null, hovered: null, waiting: false});
    this.find("[data-timeline]").hidden = false;
    this.chooseLanes();
    this.layout();
    new Controls(this).listen();
    new ResizeObserver(() => this.resize()).observe(this.box);
    this.resize();
  }

  // --- lanes -----------------------------------------------------------------------------------

  // A button per kind of lane that there is.
  chooseLanes() {
    const group = this.find(".lanes");
    for (const kind of new Set(this.run.lanes.map((lane) => lane.kind))) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = KINDS[kind];
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const show = this.hidden.delete(kind);
        if (!show) this.hidden.add(kind);
        button.setAttribute("aria-pressed", String(show));
        this.layout();
        this.resize();
      });
      group.append(button);
    }
  }

  // Give every lane and row its place.
  layout() {
    let y = AXIS;
    this.lanes = [];
    for (const lane of this.run.lanes) {
      const shown = !this.hidden.has(lane.kind);
      lane.y = y;
      for (const row of lane.rows) row.height = 0;
      if (!shown) continue;
      y += STRIP;
      for (const row of lane.rows) {
        row.y = y;
        row.height = HEIGHTS[row.kind];
        y += row.height;
      }
      lane.height = y - lane.y;
      y += 3;
      this.lanes.push(lane);
    }
    this.total = y;
  }

  resize() {
    const most = Math.min(608, Math.max(240, window.innerHeight * 0.75));
    const height = Math.min(this.total, most);
    this.painter.resize(this.box.clientWidth, height);
    this.find(".spacer").style.height = Math.max(0, this.total - height) + "px";
    this.drawOverview();
    this.draw();
  }

  // At once: paper does not wait for the next frame.
  recolour() {
    this.painter.recolour();
    this.drawOverview();
    this.drawNow();
  }

  // --- drawing ---------------------------------------------------------------------------------

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.drawNow(); });
  }

  drawNow() {
    const begun = performance.now();
    const {low, high, lanes, outlined, chosen, hovered} = this;
    this.painter.draw({low, high, top: this.box.scrollTop, lanes, outlined, chosen, hovered});
    this.drawBrush();
    this.find(".where").textContent = `${duration(high - low)} from ${duration(low)}`;
    performance.clearMeasures("hostgap:frame");
    performance.measure("hostgap:frame", {start: begun, end: performance.now()});
    if (!performance.getEntriesByName("hostgap:drawn").length) performance.mark("hostgap:drawn");
  }

  // The whole trace, once; the brush over it moves.
  drawOverview() {
    const {run, strip} = this;
    this.whole = document.createElement("canvas");
    const context = this.whole.getContext("2d");
    const width = strip.clientWidth, height = 48;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    strip.width = this.whole.width = Math.max(1, width * ratio);
    strip.height = this.whole.height = height * ratio;
    strip.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = this.painter.colours.soft;
    context.fillRect(0, 0, width, height);
    const painter = Object.create(this.painter);
    Object.assign(painter, {context, low: 0, high: run.length, scale: width / run.length, width});
    const each = height / Math.max(1, run.overview.length);
    run.overview.forEach((series, device) => painter.bins(series, device * each, each, () => true));
  }

  drawBrush() {
    if (!this.whole) return;
    const context = this.strip.getContext("2d"), width = this.strip.clientWidth;
    context.drawImage(this.whole, 0, 0, width, 48);
    const left = this.low / this.run.length * width, right = this.high / this.run.length * width;
    context.fillStyle = this.painter.colours.page;
    context.globalAlpha = 0.7;
    context.fillRect(0, 0, left, 48);
    context.fillRect(right, 0, width - right, 48);
    context.globalAlpha = 1;
    context.strokeStyle = this.painter.colours.text;
    context.lineWidth = 2;
    context.strokeRect(left + 1, 1, Math.max(right - left - 2, 1), 46);
  }

  // --- what is in view -------------------------------------------------------------------------

  show(low, high, tell = true) {
    const whole = this.run.length;
    let wide = Math.min(whole, Math.max(Math.min(SHORTEST, whole), high - low));
    if (!Number.isFinite(wide) || !Number.isFinite(low)) { wide = whole; low = 0; }
    this.low = Math.min(Math.max(0, low), whole - wide);
    this.high = this.low + wide;
    this.draw();
    if (tell) this.changed();
  }

  zoom(factor, x = this.painter.width / 2) {
    const at = this.low + x / this.painter.scale;
    this.show(at - (at - this.low) * factor, at + (this.high - at) * factor);
  }

  pan(share) {
    const by = (this.high - this.low) * share;
    this.show(this.low + by, this.high + by);
  }

  // The first step that counts, or the next one when one is in view.
  oneStep() {
    const counted = this.run.steps.filter((step) => step[3]);
    if (!counted.length) return this.show(...(this.run.windows[0] || [0, this.run.length]));
    const middle = (this.low + this.high) / 2;
    const [low, high] = counted.find((step) => step[1] > middle) || counted[0];
    const wide = high - low;
    const again = Math.abs(this.high - this.low - wide * 1.04) < wide * 0.02;
    const at = counted.findIndex((step) => step[0] === low);
    const [from, to] = again ? counted[(at + 1) % counted.length] : [low, high];
    this.show(from - (to - from) * 0.02, to + (to - from) * 0.02);
  }

  // --- findings --------------------------------------------------------------------------------

  // Outline a finding's events and zoom to one of its places; false where it is not of this run.
  select(name, spot = 0, zoom = true) {
    const marks = this.run.marks[name];
    if (!marks) return false;
    this.finding = name;
    this.outlined = [];
    const {call} = this.run.tables.stream;
    const wanted = new Set(marks.calls);
    for (const index of marks.calls) this.outlined.push({kind: "calls", index});
    let launched = 0;
    for (let op = 0; op < call.length && launched < 400; op++) {
      if (wanted.has(call[op] - 1)) { this.outlined.push({kind: "stream", index: op}); launched++; }
    }
    for (const index of marks.parts) this.outlined.push({kind: "idle", index});
    this.find(".spots").hidden = false;
    this.find(".spot-name").textContent = name;
    if (zoom) this.goTo(spot); else this.tellSpot();
    return true;
  }

  goTo(spot) {
    const {spots} = this.run.marks[this.finding];
    if (!spots.length) {
      this.spot = 0;
      this.show(...(this.run.windows[0] || [0, this.run.length]));
    } else {
      this.spot = (spot + spots.length) % spots.length;
      const [low, high] = spots[this.spot];
      const room = Math.max((high - low) * 0.35, 10000);
      this.show(low - room, high + room);
    }
    this.reveal(this.outlined.find((one) => this.painter.place(one)));
    this.tellSpot();
  }

  tellSpot() {
    const many = this.run.marks[this.finding].spots.length;
    this.find(".spot-number").textContent = many ? `place ${this.spot + 1} of ${many} that are marked`
      : "about the whole window: it names no single events";
    this.find('[data-do="next"]').disabled = this.find('[data-do="previous"]').disabled = many < 2;
  }

  clear() {
    Object.assign(this, {finding: null, outlined: [], chosen: null});
    this.find(".spots").hidden = true;
    this.tell();
    this.draw();
    this.changed();
  }

  // --- one event -------------------------------------------------------------------------------

  // What lies under a point of the canvas, null for nothing.
  at(x, y) {
    const time = this.low + x / this.painter.scale, slack = 3 / this.painter.scale;
    y += this.box.scrollTop;
    for (const lane of this.lanes) {
      if (y < lane.y || y >= lane.y + lane.height) continue;
      for (const row of lane.rows) {
        if (y < row.y || y >= row.y + row.height) continue;
        const i = row.from(time - slack);
        let best = -1;
        for (let j = i; j < row.n && row.start[j] <= time + slack && j < i + 200; j++) {
          if (row.start[j] <= time && row.end[j] > time) { best = j; break; }
          if (best < 0) best = j;
        }
        return best < 0 ? null : {kind: row.kind, index: row.index[best], row, at: best};
      }
    }
    return null;
  }

  // Lines that describe an event.
  describe({kind, index}) {
    const {run} = this, {names} = run;
    if (kind === "idle") {
      const {start, dur, cause, site, detail} = run.parts;
      const {name, meaning} = run.causes[cause[index]];
      const lines = [`GPU idle ${duration(dur[index])}: ${name}`, meaning, `from ${exact(start[index])}`];
      if (detail[index]) lines.push(`innermost: ${names[detail[index]]}`);
      if (site[index]) lines.push(`in ${names[site[index]]}`);
      return lines;
    }
    const table = run.tables[kind];
    const times = `${exact(table.dur[index])} from ${exact(table.start[index])}`;
    if (table.many[index]) {
      return [`${table.many[index].toLocaleString("en")} events, merged for size`, `within ${times}`];
    }
    const lines = [names[table.name[index]] || "(no name)", `${run.lanes[table.lane[index]].label}, ${times}`];
    if (kind === "stream" && table.call[index]) {
      const calls = run.tables.calls, call = table.call[index] - 1;
      if (calls.site[call]) lines.push(`in ${names[calls.site[call]]}`);
      lines.push(`launched by ${names[calls.name[call]]}, ${duration(table.start[index] - calls.start[call])} before`);
    }
    if (kind === "calls") {
      if (table.site[index]) lines.push(`in ${names[table.site[index]]}`);
      const ops = this.painter.launchedBy(index, 1000);
      if (ops.length) lines.push(`launched ${ops.length > 1 ? ops.length + " GPU ops, the first " : ""}${names[run.tables.stream.name[ops[0]]]}`);
    }
    return lines;
  }

  choose(event) {
    this.chosen = event;
    this.reveal(event);
    this.tell();
    this.draw();
    this.changed();
  }

  tell() {
    const box = this.find(".chosen");
    box.replaceChildren();
    const lines = this.chosen ? this.describe(this.chosen) : ["Click an event, or press . and , to step through them."];
    lines.forEach((line, number) => {
      const p = document.createElement("p");
      p.textContent = line;
      if (number || !this.chosen) p.className = "dim"; else p.style.fontWeight = "600";
      box.append(p);
    });
  }

  // Scroll the lanes so that an event's row is in view.
  reveal(event) {
    const place = event && this.painter.place(event);
    if (!place) return;
    const {y, height} = place.row, top = this.box.scrollTop;
    if (y - AXIS - STRIP < top || y + height > top + this.painter.height) {
      this.box.scrollTop = Math.max(0, y - this.painter.height / 2);
    }
  }

  // The next or previous event of the chosen one's row, or of the next row with events.
  step(by, rows = 0) {
    const all = this.lanes.flatMap((lane) => lane.rows).filter((row) => row.n);
    if (!all.length) return;
    const place = this.chosen && this.painter.place(this.chosen);
    let at = place ? all.indexOf(place.row) : 0;
    if (rows) at = (at + rows + all.length) % all.length;
    const row = all[at];
    let i;
    if (place && !rows) {
      i = Math.min(row.n - 1, Math.max(0, row.index.indexOf(this.chosen.index) + by));
    } else {
      const middle = place ? this.low + (place.x + place.w / 2) / this.painter.scale : this.low;
      i = Math.min(row.n - 1, row.from(middle));
    }
    this.choose({kind: row.kind, index: row.index[i]});
    if (row.start[i] < this.low || row.end[i] > this.high) {
      const wide = Math.max(this.high - this.low, (row.end[i] - row.start[i]) * 1.2);
      const middle = (row.start[i] + row.end[i]) / 2;
      this.show(middle - wide / 2, middle + wide / 2);
    }
  }

  zoomToChosen() {
    const place = this.chosen && this.painter.place(this.chosen);
    if (!place) return;
    const low = this.low + place.x / this.painter.scale, wide = place.w / this.painter.scale;
    const room = Math.max(wide * 0.5, 500);
    this.show(low - room, low + wide + room);
  }
}

// A time with every nanosecond, for those who check.
function exact(ns) {
  return ns >= 1000 ? `${duration(ns)} (${Math.round(ns).toLocaleString("en")} ns)` : duration(ns);
}
