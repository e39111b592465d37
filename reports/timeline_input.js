// Mouse, fingers and keys of a timeline.

class Controls {
  constructor(timeline) {
    this.timeline = timeline;
    this.canvas = timeline.canvas;
  }

  listen() {
    const {canvas, timeline} = this;
    timeline.box.addEventListener("scroll", () => timeline.draw());
    const actions = {
      in: () => timeline.zoom(0.5), out: () => timeline.zoom(2),
      all: () => timeline.show(0, timeline.run.length), step: () => timeline.oneStep(),
      previous: () => timeline.goTo(timeline.spot - 1), next: () => timeline.goTo(timeline.spot + 1),
      clear: () => timeline.clear(),
    };
    for (const button of timeline.find("[data-timeline]").querySelectorAll("[data-do]")) {
      button.addEventListener("click", actions[button.dataset.do]);
    }
    canvas.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
    canvas.addEventListener("keydown", (event) => this.key(event));
    this.drag();
    this.brush();
  }

  // The page scrolls as everywhere, until the timeline has been clicked.
  wheel(event) {
    const {timeline} = this;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      timeline.pan((event.deltaX || event.deltaY) / 1000);
    } else if (event.ctrlKey || event.metaKey || document.activeElement === this.canvas) {
      event.preventDefault();
      timeline.zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) / 250), event.offsetX);
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const {timeline} = this;
    const zoom = (factor) => () => timeline.zoom(factor), pan = (share) => () => timeline.pan(share);
    const actions = {
      w: zoom(0.7), "+": zoom(0.7), "=": zoom(0.7), s: zoom(1.4), "-": zoom(1.4),
      a: pan(-0.15), ArrowLeft: pan(-0.15), d: pan(0.15), ArrowRight: pan(0.15),
      ArrowUp: () => timeline.box.scrollBy(0, -60), ArrowDown: () => timeline.box.scrollBy(0, 60),
      ".": () => timeline.step(1), ",": () => timeline.step(-1),
      "]": () => timeline.step(0, 1), "[": () => timeline.step(0, -1),
      Enter: () => timeline.zoomToChosen(), Escape: () => timeline.clear(),
      0: () => timeline.show(0, timeline.run.length),
      n: () => timeline.finding && timeline.goTo(timeline.spot + 1),
      p: () => timeline.finding && timeline.goTo(timeline.spot - 1),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  // One pointer drags, two pinch, none hovers; a press that does not move chooses.
  drag() {
    const {canvas, timeline} = this;
    const down = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      down.set(event.pointerId, event);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = down.get(event.pointerId);
      if (!before) return this.hover(event);
      const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
      moved += Math.abs(dx) + Math.abs(dy);
      if (down.size === 2) {
        const [other] = [...down.values()].filter((one) => one.pointerId !== event.pointerId);
        const was = Math.abs(before.clientX - other.clientX), is = Math.abs(event.clientX - other.clientX);
        if (was > 5 && is > 5) timeline.zoom(was / is, (before.offsetX + other.offsetX) / 2);
      } else if (moved > 4) {
        this.hideTip();
        const by = dx / timeline.painter.scale;
        timeline.show(timeline.low - by, timeline.high - by);
        if (event.pointerType === "mouse") timeline.box.scrollTop -= dy;
      }
      down.set(event.pointerId, event);
    });
    const up = (event) => {
      const pressed = down.delete(event.pointerId);
      if (pressed && moved <= 4 && event.type === "pointerup") timeline.choose(timeline.at(event.offsetX, event.offsetY));
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => this.hideTip());
  }

  hover(event) {
    const {timeline} = this, {tip} = timeline;
    const found = event.pointerType === "touch" ? null : timeline.at(event.offsetX, event.offsetY);
    if (found === null) return this.hideTip();
    timeline.hovered = found;
    tip.replaceChildren(...timeline.describe(found).map((line) => {
      const p = document.createElement("p");
      p.textContent = line;
      return p;
    }));
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)) + "px";
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight <= window.innerHeight;
    tip.style.top = (fits ? below : event.clientY - tip.offsetHeight - 12) + "px";
    timeline.draw();
  }

  hideTip() {
    const {timeline} = this;
    if (!timeline.hovered) return;
    timeline.hovered = null;
    timeline.tip.hidden = true;
    timeline.draw();
  }

  // The overview: a press moves the view there, a drag marks a new one.
  brush() {
    const {timeline} = this, {strip, run} = timeline;
    const least = run.length * 0.003;
    let from = null;
    const time = (event) => Math.max(0, Math.min(1, event.offsetX / strip.clientWidth)) * run.length;
    strip.addEventListener("pointerdown", (event) => {
      from = time(event);
      strip.setPointerCapture(event.pointerId);
    });
    strip.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = time(event);
      if (Math.abs(to - from) > least) timeline.show(Math.min(from, to), Math.max(from, to));
    });
    strip.addEventListener("pointerup", (event) => {
      const to = time(event);
      if (from !== null && Math.abs(to - from) <= least) {
        const half = (timeline.high - timeline.low) / 2;
        timeline.show(to - half, to + half);
      }
      from = null;
    });
    strip.addEventListener("pointercancel", () => { from = null; });
  }
}
