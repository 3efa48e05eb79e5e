"use strict";
/* The chart of errors along the network and the error maps, drawn by uPlot. */
(() => {
  const { data, find, make, written, pathName, asNumber, cellOf } = window.page;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const small = "12px system-ui, sans-serif";
  const power = (value) => (value ? value.toExponential(0).replace("+", "") : "0");

  function axis(label, other) {
    const grid = { stroke: () => colour("grid"), width: 1 };
    return { stroke: () => colour("ink"), font: small, labelFont: small, label, labelSize: label ? 18 : 0, grid, ticks: grid, ...other };
  }

  /* A chart as wide as its place, made once that is seen: in a closed part of the page it has no width. */
  const charts = [];
  function plot(place, height, options, values, made = () => {}) {
    let chart;
    new ResizeObserver(() => {
      const width = place.clientWidth;
      if (!width) return;
      if (chart) return chart.setSize({ width, height });
      chart = new uPlot({ legend: { show: false }, ...options, width, height }, values, place);
      charts.push(chart);
      made(chart);
    }).observe(place);
  }
  const redraw = () => charts.forEach((chart) => chart.redraw());
  for (const other of ["(prefers-color-scheme: dark)", "print"]) matchMedia(other).addEventListener("change", redraw);

  /* ---- errors along the network ---- */

  const LINES = ["free", "inclusive", "exclusive", "floor"];
  const LOWEST = 1e-12;

  function drift() {
    const count = data.calls.length;
    const calls = data.calls.map((_, at) => at);
    const errors = LINES.map((_, i) => data.calls.map((call) => asNumber(call[i + 1])));
    const seen = errors.flat().filter((error) => error > 0 && Number.isFinite(error));
    const low = Math.max(seen.reduce((a, b) => Math.min(a, b), 1e-6), LOWEST);
    const high = seen.reduce((a, b) => Math.max(a, b), 1e-6);
    const bottom = 10 ** (Math.floor(Math.log10(low)) - 1);
    const top = 10 ** Math.ceil(Math.log10(high));
    const decades = Array.from({ length: Math.round(Math.log10(top / bottom)) + 1 }, (_, at) => bottom * 10 ** at);
    // null breaks a line where nothing was measured, undefined does not where there is no error
    const drawn = (error) =>
      Number.isNaN(error) ? null : error === 0 ? undefined : Math.min(Math.max(error, bottom), top);
    const kases = data.calls.map(([row]) => cellOf(row, "case"));
    const starts = calls.filter((at) => at === 0 || kases[at] !== kases[at - 1]);
    const { faults } = data;
    const slider = find("call");
    const whole = { min: -0.5, max: count - 0.5 };
    let chart;

    function marked(u) {
      const { ctx, bbox } = u;
      const x = (at) => u.valToPos(at, "x", true);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
      ctx.clip();
      Object.assign(ctx, { font: `${12 * devicePixelRatio}px system-ui, sans-serif`, textAlign: "left", textBaseline: "alphabetic" });
      LINES.forEach((name, i) => {
        ctx.fillStyle = colour(name);
        for (const at of calls)
          if (errors[i][at] === 0) ctx.fillRect(x(at), bbox.top + bbox.height - 6 * devicePixelRatio, devicePixelRatio, 6 * devicePixelRatio);
      });
      ctx.fillStyle = colour("muted");
      starts.forEach((at, i) => {
        const [left, right] = [x(at - 0.5), x((starts[i + 1] ?? count) - 0.5)];
        if (at) ctx.fillRect(left, bbox.top, devicePixelRatio, bbox.height);
        ctx.save();
        ctx.beginPath();
        ctx.rect(left, 0, right - left, bbox.top);
        ctx.clip();
        if (right - left > 60 * devicePixelRatio)
          ctx.fillText(kases[at], Math.max(left, bbox.left) + 4 * devicePixelRatio, bbox.top - 6 * devicePixelRatio);
        ctx.restore();
      });
      ctx.strokeStyle = colour("bad");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      faults.forEach(([, at], i) => {
        ctx.beginPath();
        ctx.moveTo(Math.round(x(at)) + 0.5, bbox.top);
        ctx.lineTo(Math.round(x(at)) + 0.5, bbox.top + bbox.height);
        ctx.stroke();
        marks[i].style.left = `${u.valToPos(at, "x")}px`;
        marks[i].hidden = at < u.scales.x.min || at > u.scales.x.max;
      });
      ctx.restore();
    }

    const marks = faults.map(([number]) => {
      const mark = make("a", "mark", String(number));
      mark.href = `#fault-${number}`;
      mark.setAttribute("aria-label", `Fault ${number}`);
      return mark;
    });

    function point(at) {
      const row = data.calls[at][0];
      const [name, call, kase] = ["path", "call", "case"].map((column) => cellOf(row, column));
      const figures = ["free-running", "inclusive", "exclusive", "noise floor"].map(
        (word, i) => `${word} ${written(data.calls[at][i + 1], "rel_l2")}`
      );
      const text = `${pathName(name)}, call ${call} of ${kase}: ${figures.join(", ")}`;
      slider.value = at;
      find("call-text").textContent = text;
      slider.setAttribute("aria-valuetext", text);
    }

    function show(at) {
      point(at);
      if (!chart) return;
      chart.cursor.event = null; // where a finger was last chooses no call when the scale changes
      const { min, max } = chart.scales.x;
      if (at < min || at > max) chart.setScale("x", { min: at - (max - min) / 2, max: at + (max - min) / 2 });
      chart.setCursor({ left: chart.valToPos(at, "x"), top: 0 }, false);
    }

    function zoom(factor) {
      if (!chart) return;
      const { min, max } = chart.scales.x;
      const at = Number(slider.value);
      const width = Math.min(Math.max((max - min) * factor, 4), count);
      const left = Math.min(Math.max(at - width / 2, whole.min), whole.max - width);
      chart.setScale("x", { min: left, max: left + width });
      show(at);
    }

    const options = {
      scales: {
        x: { time: false, range: (u, min, max) => (min === calls[0] && max === calls[count - 1] ? [whole.min, whole.max] : [min, max]) },
        y: { distr: 3, range: [bottom, top] },
      },
      axes: [
        axis("calls in the order of execution", { size: 30, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }),
        axis("relative L2 error", { size: 52, splits: () => decades, values: (u, splits) => splits.map((v) => (v === null ? "" : power(v))) }),
      ],
      series: [
        {},
        ...LINES.map((name) => ({
          stroke: () => colour(name),
          width: name === "floor" ? 1 : 1.3,
          dash: name === "floor" ? [4, 2] : undefined,
          points: { size: 4, fill: () => colour(name) },
        })),
      ],
      padding: [24, 10, 0, 0],
      cursor: { y: false },
      hooks: { draw: [marked], setCursor: [(u) => u.cursor.event && u.cursor.idx !== null && point(u.cursor.idx)] },
    };
    plot(find("chart"), 320, options, [calls, ...errors.map((line) => line.map(drawn))], (made) => {
      chart = made;
      chart.over.append(...marks);
    });
    point(faults.length ? faults[0][1] : 0);
    for (const event of ["input", "focus"]) slider.addEventListener(event, () => show(Number(slider.value)));
    find("zoom-in").addEventListener("click", () => zoom(0.5));
    find("zoom-out").addEventListener("click", () => zoom(2));
    find("zoom-all").addEventListener("click", () => zoom(Infinity));
  }

  /* ---- error maps ---- */

  function bars(title, name, x, y, xAxis, yAxis, scales) {
    const part = make("div", "bars");
    part.append(make("div", "title", title));
    const options = {
      scales,
      axes: [axis("", { size: 30, ...xAxis }), axis("", { size: 46, ...yAxis })],
      series: [{}, { fill: () => colour(name), stroke: () => colour(name), width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [1, Infinity], gap: 0 }) }],
      cursor: { show: false },
      padding: [8, 8, 0, 0],
    };
    const place = make("div");
    part.append(place);
    plot(place, 150, options, [x, y]);
    return part;
  }

  function along(one) {
    const step = one.size / one.errors.length;
    const x = one.errors.map((_, at) => (at + 0.5) * step - 0.5);
    const y = one.errors.map((error) => (Number.isFinite(asNumber(error)) ? asNumber(error) : null));
    const top = y.reduce((a, b) => Math.max(a, b), 0) || 1;
    const scales = { x: { time: false, range: [-0.5, one.size - 0.5] }, y: { range: [0, top * 1.05] } };
    const xAxis = { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10000, 100000] };
    return bars(`by ${one.axis}`, "exclusive", x, y, xAxis, { space: 40 }, scales);
  }

  function histogram(counts) {
    const edges = data.edges.map(Math.log10);
    const [first, step] = [edges[0], edges[1] - edges[0]];
    // those that are equal stand apart on the left
    const x = [first - 3 * step, ...counts.slice(1).map((_, at) => first + (at - 0.5) * step)];
    const last = x[x.length - 1] + step / 2;
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    const powers = [0, ...Array.from({ length: Math.ceil(Math.log10(most)) }, (_, at) => 10 ** (at + 1))];
    const xAxis = {
      splits: () => [x[0], ...[2, 6, 10].map((more) => Math.round(first) + more)],
      values: (u, splits) => splits.map((v, at) => (at ? `1e${v}` : "equal")),
    };
    const yAxis = { splits: () => powers, values: (u, splits) => splits.map(power), filter: (u, splits) => splits };
    const scales = { x: { time: false, range: [x[0] - step, last] }, y: { distr: 4, asinh: 1, range: [0, powers[powers.length - 1] || 1] } };
    const title = "entries by |port - reference| / rms of the reference";
    return bars(title, "free", x, counts, xAxis, yAxis, scales);
  }

  if (data.calls.length) drift();
  for (const place of document.querySelectorAll(".map .sides")) {
    const map = data.maps[place.dataset.fault];
    const long = map.along.filter((one) => one.size > 1);
    place.append(...(long.length ? long : map.along).map(along), histogram(map.counts));
    place.lastChild.classList.add("wide");
  }
})();
