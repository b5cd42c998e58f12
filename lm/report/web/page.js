"use strict";
(async () => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (name, text = "", parent = null) => {
    const element = document.createElement(name);
    element.textContent = text; // never innerHTML: names of arms are anyone's text
    if (parent) parent.append(element);
    return element;
  };
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  };

  // tooltips ---------------------------------------------------------------------------------------------------------

  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const tell = (lines, x, y) => {
    tip.replaceChildren(...lines.map((line) => make("div", line)));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 4))}px`;
    tip.style.top = `${y + 16 + height < innerHeight ? y + 16 : Math.max(4, y - height - 8)}px`;
  };
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", hide, true);

  // one report of those on the page: `root` holds it, and its ids begin with `data-report` ---------------------------

  const short = (value) => typeof value === "number" ? String(Number(value.toPrecision(6))) : value === null ? "-" : String(value);
  const pair = (low, high) => `[${short(low)}, ${short(high)}]`;
  const panel = document.getElementById("panel");
  const grid = (parent, heads, rows) => {
    const box = make("div", "", parent);
    box.className = "scroll";
    const table = make("table", "", box), top = make("tr", "", make("thead", "", table)), body = make("tbody", "", table);
    heads.forEach((head) => { make("th", head, top).scope = "col"; });
    for (const row of rows) { const line = make("tr", "", body); row.forEach((cell) => make("td", short(cell), line)); }
  };
  const begin = async (root) => {
    const own = (id) => document.getElementById(root.dataset.report + id);
    const [report, specs, data] = await Promise.all(
      ["report", "specs", "rows"].map(async (id) => JSON.parse(await unpack(root.dataset.report + id))));

    if (own("comparison")) tables(own, root, report);
    return charts(own, root, report, specs, data);
  };

  // the numbers of a table: what is behind each, sorting, filtering, columns ------------------------------------------

  const tables = (own, root, report) => {
    const rowOf = new Map(report.table.metric.map((metric, at) => [JSON.stringify([metric, report.table.arm[at]]), at]));
    const behind = (button) => {
      const metric = button.dataset.metric, place = Number(button.dataset.arm);
      const at = rowOf.get(JSON.stringify([metric, report.arms[place]]));
      return { metric, place, of: (column) => report.table[column][at] };
    };
    const summary = ({ metric, place, of }) => {
      const lines = [`${report.arms[place]}: ${report.labels[metric]}`, `n = ${of("n")}, mean ${short(of("mean"))}, sd ${short(of("sd"))}`];
      if (of("difference") !== null) {
        lines.push(`difference ${short(of("difference"))} ${pair(of("low"), of("high"))}, ${of("interval")} 95 % interval`, `${of("pairs")} pairs; ${of("verdict")}`);
      }
      return lines;
    };
    const open = (button) => {
      const found = behind(button), { metric, place, of } = found, arm = report.arms[place];
      panel.replaceChildren();
      const top = make("header", "", panel);
      make("h2", `${arm}: ${report.labels[metric]}`, top);
      const close = make("button", "Close", top);
      close.type = "button";
      close.addEventListener("click", () => panel.close());
      summary(found).slice(1).forEach((line) => make("p", line, panel));
      make("h3", "Cells", panel);
      const values = report.values[metric], base = place ? ["baseline", "difference"] : [];
      grid(panel, ["seed", "status", "value", ...base, "cell"], report.seeds.map((seed, at) => {
        const mine = values[place][at], other = values[0][at];
        const beside = place ? [other, mine === null || other === null ? null : mine - other] : [];
        return [seed, report.status[place][at], mine, ...beside, report.cells[place][at]];
      }));
      make("h3", "Look at them", panel);
      make("p", "In the folder that holds cells/; each cell is a folder in it, by the id above.", panel).className = "hint";
      make("pre", `${report.trace[place]} ${report.quoted[metric]}`, panel);
      make("h3", "Its row of table.csv", panel);
      grid(panel, ["column", "value"], Object.keys(report.table).map((column) => {
        const value = of(column);
        return [column, typeof value === "number" ? String(value) : value];
      }));
      hide();
      panel.showModal();
    };
    const table = own("comparison");
    for (const kind of ["pointerover", "focusin"]) {
      table.addEventListener(kind, (event) => {
        const button = event.target.closest("td button");
        if (!button) return hide();
        const box = button.getBoundingClientRect();
        tell(summary(behind(button)), box.left, box.bottom - 8);
      });
    }
    table.addEventListener("click", (event) => {
      const button = event.target.closest("td button");
      if (button) open(button);
    });
    for (const kind of ["pointerleave", "focusout"]) table.addEventListener(kind, hide);

    const body = table.tBodies[0], lines = [...body.rows], heads = [...table.tHead.rows[0].cells];
    const key = (row, at) => { const text = row.cells[at].dataset.v; return text === "" || isNaN(text) ? text : Number(text); };
    const order = (a, b, way) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // what is not there comes last, whichever way
      return way * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    };
    heads.forEach((head, at) => head.firstElementChild.addEventListener("click", () => {
      const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
      body.append(...[...lines].sort((a, b) => order(key(a, at), key(b, at), way)));
    }));
    const filter = own("filter"), count = own("count");
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      lines.forEach((row) => { row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word)); });
      const shown = lines.filter((row) => !row.hidden).length;
      count.textContent = shown < lines.length ? `${shown} of ${lines.length} ${report.rows || "arms"}` : "";
    });
    all("[data-column]", root).forEach((box) => box.addEventListener("change", () => {
      const at = Number(box.dataset.column);
      [heads[at], ...lines.map((row) => row.cells[at])].forEach((cell) => { cell.hidden = !box.checked; });
    }));

  };

  // charts -----------------------------------------------------------------------------------------------------------

  const charts = (own, root, report, specs, data) => {
    const views = new Map();
    const boxes = all("[data-shown]", root);
    const shown = () => new Set(boxes.filter((box) => box.checked).map((box) => Number(box.dataset.shown)));
    const select = (name) => root.querySelector(`select[data-for="${CSS.escape(name)}"]`);
    const panelOf = (name) => specs[name].panels[select(name) ? select(name).value : 0];
    const rows = (name, part) => {
      const on = specs[name].arms ? shown() : null, names = specs[name].names || report.arms;
      const drawn = data[panelOf(name).sets[part]].filter((row) => !(on && "arm" in row) || on.has(row.arm));
      return drawn.map((row) => "arm" in row ? { ...row, arm: names[row.arm] } : row);
    };
    const draw = async (name) => {
      const { spec: panel, sets } = panelOf(name), log = root.querySelector(`[data-log="${CSS.escape(name)}"]`);
      const spec = structuredClone(panel);
      spec.datasets = Object.fromEntries(Object.keys(sets).map((part) => [part, rows(name, part)]));
      const each = (node, change) => {
        if (node.encoding) change(node.encoding);
        (node.layer || []).forEach((one) => each(one, change));
      };
      if (log && log.checked) {
        each(spec, (encoding) => { if (encoding.y && encoding.y.scale) encoding.y.scale = { type: "log", nice: false }; });
      }
      if (views.has(name)) views.get(name).finalize();
      const tooltip = (handler, event, item, value) => {
        if (!value || typeof value !== "object") return hide();
        tell(Object.entries(value).map(([title, text]) => `${title}: ${text}`), event.clientX, event.clientY);
      };
      const options = { mode: "vega-lite", ast: true, renderer: "svg", actions: false, defaultStyle: false, logLevel: 1, tooltip };
      views.set(name, await vegaEmbed(own(`chart-${name}`), spec, options));
    };
    const redraw = (name) => draw(name).catch((error) => {
      make("p", `This chart could not be drawn: ${error.message}`, own(`chart-${name}`)).className = "warn";
    });
    all("select[data-for]", root).forEach((one) => one.addEventListener("change", () => redraw(one.dataset.for)));
    all("[data-log]", root).forEach((one) => one.addEventListener("change", () => redraw(one.dataset.log)));
    const toggled = () => Object.keys(specs).filter((name) => specs[name].arms).forEach(redraw);
    boxes.forEach((box) => box.addEventListener("change", toggled));
    all("[data-all]", root).forEach((button) => button.addEventListener("click", () => {
      boxes.forEach((box) => { box.checked = button.dataset.all === "all"; });
      toggled();
    }));
    return Object.keys(specs).map((name) => () => redraw(name));
  };
  // what is folded, and the table of contents ------------------------------------------------------------------------

  all("section > details, details.report").forEach((fold) => fold.addEventListener("toggle", () => {
    if (fold.open) dispatchEvent(new Event("resize")); // what was drawn in it has no width yet
  }));
  all('a[href^="#"]').forEach((link) => link.addEventListener("click", () => {
    const target = document.getElementById(link.hash.slice(1)), inside = target && target.querySelector(":scope > details");
    for (let fold = inside || target; fold; fold = fold.parentElement) if (fold.tagName === "DETAILS") fold.open = true;
  }));

  const links = new Map(all("main > nav.contents a").map((link) => [document.getElementById(link.hash.slice(1)), link]));
  const watch = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (isIntersecting) links.get(target).setAttribute("aria-current", "true");
    else links.get(target).removeAttribute("aria-current");
  }), { rootMargin: "-10% 0px -89% 0px" }); // what lies a tenth below the top is what is being read
  for (const section of links.keys()) watch.observe(section);

  // printing ---------------------------------------------------------------------------------------------------------

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open]):not(.controls)");
    opened.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));

  // what this page holds, unpacked and drawn one after the other -----------------------------------------------------

  if (!window.DecompressionStream) {
    document.getElementById("old").hidden = false;
    return;
  }
  const queue = (await Promise.all(all("[data-report]").map(begin))).flat();
  if (!document.getElementById("library")) return;
  make("script", await unpack("library"), document.body);
  const later = window.requestIdleCallback || ((call) => setTimeout(call, 0));
  const next = () => {
    const drawing = queue.shift();
    if (drawing) drawing().then(() => later(next));
    else document.documentElement.dataset.drawn = "true";
  };
  later(next);
})();
