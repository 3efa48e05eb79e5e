"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const numeric = new Set(data.numeric);
  const columnOf = new Map(data.columns.map((name, at) => [name, at]));

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  const asNumber = (value) =>
    value === null ? NaN : value === "inf" ? Infinity : value === "-inf" ? -Infinity : value;

  function written(value, name) {
    if (!numeric.has(name)) return String(value);
    const number = asNumber(value);
    if (Number.isNaN(number)) return "\u2013";
    if (!Number.isFinite(number)) return number > 0 ? "\u221e" : "-\u221e";
    if (Number.isInteger(number) && Math.abs(number) < 1e6) return String(number);
    const size = Math.abs(number);
    return size >= 1e-2 && size < 1e4 ? String(Number(number.toPrecision(3))) : number.toExponential(2);
  }

  const pathName = (path) => path || "<root>";

  /* ---- the table of rows: filtered and sorted as a whole, and a page of it in the document ---- */

  const PAGE = 100;
  const rows = data.rows;
  const searched = ["path", "nnx_path", "kind", "case", "leaf", "rung", "grade", "verdict"];
  const texts = rows.map((row) =>
    searched.map((name) => row[columnOf.get(name)]).join("\n").toLowerCase()
  );
  const everything = rows.map((_, at) => at);
  const view = { found: everything, column: null, down: false, page: 0, open: new Set() };

  function filtered() {
    const wanted = find("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdict = find("verdict").value;
    const kind = find("kind").value;
    const [verdictAt, kindAt] = [columnOf.get("verdict"), columnOf.get("kind")];
    return everything.filter(
      (at) =>
        (!verdict || rows[at][verdictAt] === verdict) &&
        (!kind || rows[at][kindAt] === kind) &&
        wanted.every((word) => texts[at].includes(word))
    );
  }

  function sorted(found) {
    if (view.column === null) return found;
    const column = columnOf.get(view.column);
    const sign = view.down ? -1 : 1;
    if (!numeric.has(view.column))
      return found.sort((a, b) => {
        const [x, y] = [rows[a][column], rows[b][column]];
        return (x < y ? -sign : x > y ? sign : 0) || a - b;
      });
    const values = rows.map((row) => asNumber(row[column]));
    return found.sort((a, b) => {
      const [x, y] = [values[a], values[b]];
      // what was not measured comes last, whichever way
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
      return (x < y ? -sign : x > y ? sign : 0) || a - b;
    });
  }

  function refresh() {
    view.found = sorted(filtered());
    view.page = 0;
    draw();
    keep();
  }

  /* ---- what is shown, in the address: a page of a file may change nothing of that but its fragment ---- */

  const HERE = "#rows?";
  const FIELDS = ["search", "verdict", "kind"];

  function keep() {
    const words = new URLSearchParams();
    for (const id of FIELDS) if (find(id).value) words.set(id, find(id).value);
    if (view.column !== null) words.set("sort", (view.down ? "-" : "") + view.column);
    if (view.page) words.set("page", view.page + 1);
    if (view.open.size) words.set("open", [...view.open].join(" "));
    history.replaceState(null, "", HERE + words);
  }

  function restore() {
    if (!location.hash.startsWith(HERE)) return;
    const words = new URLSearchParams(location.hash.slice(HERE.length));
    for (const id of FIELDS) find(id).value = words.get(id) || "";
    const sort = words.get("sort") || "";
    const column = sort.replace(/^-/, "");
    [view.column, view.down] = [data.shown.includes(column) ? column : null, sort.startsWith("-")];
    view.open = new Set((words.get("open") || "").split(" ").filter((at) => at in rows).map(Number));
    view.found = sorted(filtered());
    const pages = Math.ceil(view.found.length / PAGE);
    view.page = Math.max(Math.min(Math.trunc(words.get("page")) || 1, pages) - 1, 0);
    draw();
    (document.querySelector("tr.more") || find("rows")).scrollIntoView({ block: "center" });
  }

  function cell(row, name) {
    const value = row[columnOf.get(name)];
    const td = make("td", numeric.has(name) ? "number" : name);
    if (name === "verdict") td.append(make("span", `badge ${value}`, value));
    else if (name === "leaf") dotted(td, value);
    else td.textContent = written(value, name);
    return td;
  }

  /* lines break between the parts of a dotted name */
  function dotted(element, name) {
    name.split(".").forEach((part, i) => {
      if (i) element.append(".", make("wbr"));
      element.append(part);
    });
  }

  function opener(at, line) {
    const row = rows[at];
    const td = make("td", "path");
    const button = make("button", "plain");
    button.type = "button";
    dotted(button, pathName(row[columnOf.get("path")]));
    button.setAttribute("aria-expanded", String(view.open.has(at)));
    button.addEventListener("click", () => {
      const open = !view.open.has(at);
      if (open) {
        view.open.add(at);
        line.after(more(at));
      } else {
        view.open.delete(at);
        line.nextElementSibling.remove();
      }
      button.setAttribute("aria-expanded", String(open));
      keep();
    });
    td.append(button);
    return td;
  }

  function more(at) {
    const line = make("tr", "more");
    const td = make("td");
    td.colSpan = data.shown.length;
    const list = make("dl", "facts");
    for (const name of data.columns) {
      const value = rows[at][columnOf.get(name)];
      if (data.shown.includes(name) || value === "" || value === null) continue;
      const pair = make("div");
      pair.append(make("dt", "", name), make("dd", "", written(value, name)));
      list.append(pair);
    }
    td.append(list);
    line.append(td);
    return line;
  }

  function draw() {
    const body = make("tbody");
    const start = view.page * PAGE;
    const shown = view.found.slice(start, start + PAGE);
    for (const at of shown) {
      const line = make("tr");
      for (const name of data.shown)
        line.append(name === "path" ? opener(at, line) : cell(rows[at], name));
      body.append(line);
      if (view.open.has(at)) body.append(more(at));
    }
    find("table").tBodies[0].replaceWith(body);
    const count = view.found.length;
    find("count").textContent = `${count.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    const last = Math.max(Math.ceil(count / PAGE), 1);
    find("page").textContent = `page ${view.page + 1} of ${last}`;
    find("previous").disabled = view.page === 0;
    find("next").disabled = view.page + 1 >= last;
    for (const th of find("table").tHead.rows[0].cells) {
      const order = th.dataset.name !== view.column ? "none" : view.down ? "descending" : "ascending";
      th.setAttribute("aria-sort", order);
    }
  }

  function head() {
    const line = find("table").tHead.rows[0];
    for (const name of data.shown) {
      const th = make("th", numeric.has(name) ? "number" : "");
      th.scope = "col";
      th.dataset.name = name;
      const button = make("button", "plain", name);
      button.type = "button";
      button.addEventListener("click", () => {
        // the worst first, then the best, then as the model runs
        const first = numeric.has(name);
        if (view.column !== name) [view.column, view.down] = [name, first];
        else if (view.down === first) view.down = !first;
        else view.column = null;
        refresh();
      });
      th.append(button);
      line.append(th);
    }
  }

  function options(id, name) {
    const values = [...new Set(rows.map((row) => row[columnOf.get(name)]))].sort();
    for (const value of values) {
      const option = make("option", "", value);
      option.value = value;
      find(id).append(option);
    }
  }

  function showRows(path) {
    find("search").value = path;
    find("verdict").value = "";
    find("kind").value = "";
    view.column = null;
    refresh();
    find("rows").scrollIntoView();
    find("search").focus({ preventScroll: true });
  }

  head();
  options("verdict", "verdict");
  options("kind", "kind");
  draw();
  for (const id of ["search", "verdict", "kind"]) find(id).addEventListener("input", refresh);
  find("filter").addEventListener("submit", (event) => event.preventDefault());
  for (const [id, step] of [["previous", -1], ["next", 1]])
    find(id).addEventListener("click", () => {
      view.page += step;
      draw();
      keep();
      find("table-region").scrollTop = 0;
    });
  for (const button of document.querySelectorAll("button[data-path]"))
    button.addEventListener("click", () => showRows(button.dataset.path));

  restore();
  addEventListener("hashchange", restore);

  /* ---- what is taken along ---- */

  find("copy").addEventListener("click", async () => {
    const place = make("textarea", "", data.markdown);
    try {
      await navigator.clipboard.writeText(data.markdown);
    } catch { // not every browser lets a file have the clipboard
      document.body.append(place);
      place.select();
      document.execCommand("copy");
      place.remove();
    }
    find("copied").textContent = "copied";
  });

  /* as parity/report/table.py writes it: a spreadsheet must compute no text */
  function entry(name, value) {
    if (value === null) return "";
    const text = !numeric.has(name) && /^[=+\-@]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  find("download").addEventListener("click", () => {
    const lines = view.found.map((at) => rows[at].map((value, i) => entry(data.columns[i], value)));
    const text = [data.columns, ...lines].map((line) => `${line.join(",")}\n`).join("");
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "rows.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  });

  const cellOf = (at, name) => rows[at][columnOf.get(name)];
  window.page = { data, find, make, written, pathName, asNumber, cellOf }; // for charts.js
})();
