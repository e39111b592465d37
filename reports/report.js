// The page around the timelines: theme, pickers, buttons, and the address that keeps the view.
//
// Nothing here makes markup of a name: text goes into the page through textContent only.

const timelines = new Map(); // number of a run -> its Timeline, or the promise of one
let current = 0; // the run that is shown

// --- theme ---------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
}

function setTheme(value) {
  document.documentElement.dataset.theme = value;
  tellTheme();
}

function tellTheme() {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.textContent = theme() === "dark" ? "Light theme" : "Dark theme";
  for (const one of timelines.values()) if (one instanceof Timeline) one.recolour();
}

// --- the address ---------------------------------------------------------------------------------

// `#HG101-3&t=100-200&e=calls.7&run=1`: a finding, the ns in view, the chosen event, the run.
function readAddress() {
  const wanted = {run: 0, finding: null, view: null, event: null};
  let known = false;
  for (const part of decodeURIComponent(location.hash.slice(1)).split("&")) {
    let match;
    if (/^[A-Z]{2,5}\d{3}-\d+$/.test(part)) wanted.finding = part;
    else if ((match = /^t=(\d+)-(\d+)$/.exec(part))) wanted.view = [Number(match[1]), Number(match[2])];
    else if ((match = /^e=(idle|stream|calls|ops|frames)\.(\d+)$/.exec(part))) wanted.event = {kind: match[1], index: Number(match[2])};
    else if ((match = /^run=(\d+)$/.exec(part))) wanted.run = Number(match[1]);
    else continue;
    known = true;
  }
  return known ? wanted : null;
}

let pending = 0;

function writeAddress() {
  clearTimeout(pending);
  pending = setTimeout(() => {
    const timeline = timelines.get(current);
    if (!(timeline instanceof Timeline)) return;
    const parts = [];
    if (timeline.finding) parts.push(timeline.finding);
    if (timeline.low > 0 || timeline.high < timeline.run.length) {
      parts.push(`t=${Math.round(timeline.low)}-${Math.round(timeline.high)}`);
    }
    if (timeline.chosen) parts.push(`e=${timeline.chosen.kind}.${timeline.chosen.index}`);
    if (current) parts.push(`run=${current}`);
    written = "#" + parts.join("&");
    // not location.hash: every frame of a drag would become an entry of the history
    if (parts.length || readAddress()) history.replaceState(null, "", parts.length ? written : location.pathname + location.search);
  }, 150);
}

let written = ""; // what the page itself put there

async function followAddress() {
  const wanted = readAddress();
  if (!wanted || location.hash === written) return;
  showRun(wanted.run);
  const timeline = await timelineOf(current);
  if (timeline === null) return;
  const table = wanted.event && timeline.run.tables[wanted.event.kind];
  if (wanted.finding) {
    timeline.select(wanted.finding, 0, wanted.view === null);
    markCurrent(wanted.finding);
  }
  if (wanted.view) timeline.show(...wanted.view, false);
  if (table && wanted.event.index < table.start.length) timeline.choose(wanted.event);
  if (wanted.finding || wanted.view) scrollTo(timeline);
}

function scrollTo(timeline) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  timeline.find("h2").scrollIntoView({behavior: calm ? "auto" : "smooth", block: "start"});
}

// --- runs and devices ----------------------------------------------------------------------------

function showRun(number) {
  const runs = document.querySelectorAll(".run");
  if (!runs.length) return;
  current = number < runs.length ? number : 0;
  runs.forEach((run, at) => { run.hidden = at !== current; });
  const choice = document.getElementById("run-choice");
  if (choice) choice.value = String(current);
  timelineOf(current);
}

// The timeline of a run, unpacked when it is first wanted; null where there is none.
async function timelineOf(number) {
  if (!timelines.has(number)) timelines.set(number, makeTimeline(number));
  return timelines.get(number);
}

async function makeTimeline(number) {
  const block = document.getElementById("events-" + number);
  const view = document.querySelector(`[data-timeline="${number}"]`);
  if (!block || !view) return null;
  const section = view.closest("section");
  if (typeof DecompressionStream === "undefined") {
    section.querySelector(".old").hidden = false;
    return null;
  }
  const run = await unpack(JSON.parse(block.textContent));
  const timeline = new Timeline(run, section, writeAddress);
  timelines.set(number, timeline);
  for (const button of document.querySelectorAll(`.go[data-run="${number}"]`)) {
    button.hidden = false;
    button.addEventListener("click", () => {
      if (timeline.select(button.dataset.finding)) {
        markCurrent(button.dataset.finding);
        scrollTo(timeline);
        timeline.canvas.focus({preventScroll: true});
      }
    });
  }
  return timeline;
}

function markCurrent(name) {
  for (const one of document.querySelectorAll(".current")) one.classList.remove("current");
  const id = (current ? `run${current}-` : "") + name;
  const item = document.getElementById(id);
  if (item) item.classList.add("current");
}

function pickDevices() {
  for (const picker of document.querySelectorAll(".devices")) {
    const panels = picker.parentElement.querySelectorAll(".device");
    const select = picker.querySelector("select");
    const choose = () => panels.forEach((panel, at) => { panel.hidden = at !== Number(select.value); });
    picker.hidden = false;
    select.addEventListener("change", choose);
    choose();
  }
}

// --- tables that sort, data that can be saved, printing ------------------------------------------

function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      const value = (row) => {
        const {sort} = row.cells[column].dataset;
        return sort === undefined ? row.cells[column].textContent : Number(sort);
      };
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = typeof x === "number" ? x - y : x.localeCompare(y);
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

function savable(button) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const text = document.getElementById(button.dataset.save).textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
    link.download = button.dataset.save + ".json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

// Paper is white, and cannot be clicked open.
function printing() {
  let opened = [], before;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    setTheme("light");
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
    if (before) setTheme(before); else { delete document.documentElement.dataset.theme; tellTheme(); }
  });
}

// --- begin ---------------------------------------------------------------------------------------

document.getElementById("theme").addEventListener("click", () => setTheme(theme() === "dark" ? "light" : "dark"));
dark.addEventListener("change", tellTheme);
tellTheme();
pickDevices();
document.querySelectorAll(".sortable").forEach(sortable);
document.querySelectorAll("[data-save]").forEach(savable);
printing();
const picker = document.getElementById("picker");
if (picker) {
  picker.hidden = false;
  document.getElementById("run-choice").addEventListener("change", (event) => {
    showRun(Number(event.target.value));
    writeAddress();
  });
}
addEventListener("hashchange", followAddress);
showRun(0);
followAddress();
