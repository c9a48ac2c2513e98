"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector) => document.querySelector(selector);
  const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
  const SCALE = CIVIDIS.map((colour, place) => [place / (CIVIDIS.length - 1), colour]);
  const PAPER_WIDTH = 660; // pixels between the margins of a page of A4 or Letter
  const BANDS = 3; // more bands over each other say nothing
  const AXES = { round: "round", sent: "sent, both ways", seconds: "seconds of training" };

  let data = JSON.parse(one("#data").textContent);
  const state = { metric: data.monitored, axis: "round", log: false, hidden: new Set(), printing: false };

  // Plotly reads a few tags in labels; names are text.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const dark = () => root.dataset.theme === "dark";
  const colour = (group) => (dark() ? group.dark : group.colour);
  const faded = (hex, alpha) => `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},${alpha})`;
  const shown = () => data.groups.filter((group) => !state.hidden.has(group.label));
  const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

  function layout(height, more = {}) {
    const axis = () => ({ gridcolor: css("--rule"), zerolinecolor: css("--rule"), linecolor: css("--rule"), automargin: true });
    const made = {
      height, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: { l: 56, r: 14, t: 12, b: 44 }, font: { family: "inherit", size: 12.5, color: css("--ink") },
      hoverlabel: { bgcolor: css("--paper"), bordercolor: css("--rule"), font: { color: css("--ink"), size: 12.5 }, namelength: -1 },
      dragmode: "zoom", ...more,
    };
    for (const name of ["xaxis", "yaxis", "xaxis2", "yaxis2"]) {
      if (name in made || !name.endsWith("2")) made[name] = { ...axis(), ...(made[name] || {}) };
    }
    return made;
  }

  // Rounds are whole numbers, also where there are only a few.
  const rounds = (most, more = {}) => ({ title: { text: "round" }, ...(most <= 10 ? { dtick: 1 } : {}), ...more });
  const last = (groups, of) => Math.max(0, ...groups.map((group) => of(group).at(-1) ?? 0));

  const config = { responsive: true, displayModeBar: false };

  function draw(place, traces, made) {
    if (!traces.length) {
      if (place.classList.contains("js-plotly-plot")) Plotly.purge(place);
      const notice = document.createElement("p");
      notice.className = "notice";
      notice.textContent = "Nothing to show: switch an algorithm on above.";
      place.replaceChildren(notice);
      return null;
    }
    if (!place.classList.contains("js-plotly-plot")) place.replaceChildren();
    if (state.printing) made = { ...made, width: place.closest(".grid") ? PAPER_WIDTH / 2 - 10 : PAPER_WIDTH, autosize: false };
    return Plotly.react(place, traces, made, config);
  }

  function line(group, x, y, more = {}) {
    return {
      type: "scatter", mode: "lines+markers", name: plain(group.label), x, y,
      line: { color: colour(group), width: 2, dash: group.dash },
      marker: { symbol: group.symbol, size: 7, maxdisplayed: 9, color: colour(group) }, ...more,
    };
  }

  function band(group, x, low, high) {
    const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", name: plain(group.label) };
    return [{ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor: faded(colour(group), data.groups.length > 4 ? 0.12 : 0.2) }];
  }

  function progress(place) {
    const lines = [], bands = [];
    for (const group of shown()) {
      const found = group.lines[state.metric];
      if (!found) continue;
      const at = group.round.map((_, i) => i).filter((i) => found.mean[i] !== null);
      const pick = (values) => at.map((i) => values[i]);
      const x = pick(group[state.axis]), mean = pick(found.mean);
      if (found.sd) {
        const sd = pick(found.sd), low = mean.map((value, i) => value - sd[i]);
        bands.push(...band(group, x, state.log ? low.map((v, i) => Math.max(v, mean[i] / 10)) : low, mean.map((value, i) => value + sd[i])));
        lines.push(line(group, x, mean, { customdata: sd, hovertemplate: "%{y:.4~g} ± %{customdata:.2~g}" }));
      } else lines.push(line(group, x, mean, { hovertemplate: "%{y:.4~g}" }));
    }
    const name = (data.metrics.find((metric) => metric.key === state.metric) || { name: "" }).name;
    draw(place, [...bands, ...lines], layout(420, {
      hovermode: state.axis === "round" ? "x unified" : "closest",
      xaxis: {
        ...(state.axis === "round" ? rounds(last(shown(), (group) => group.round)) : {}),
        title: { text: AXES[state.axis] + (state.axis === "sent" ? ` (${data.unit})` : "") }, rangemode: "tozero", hoverformat: ".4~g",
      },
      yaxis: { title: { text: plain(name) }, type: state.log ? "log" : "linear" },
    }));
  }

  function federation(place) {
    const found = data.federations[+place.dataset.index];
    const names = found.names.map((name) => plain(cut(name, 24)));
    const every = Math.ceil(found.names.length / (place.clientWidth < 600 ? 12 : 30));
    const x = found.names.map((_, i) => i);
    const ticks = x.filter((i) => i % every === 0);
    const hover = found.names.map(plain);
    const ink = dark() ? "#3d9fe0" : "#0072B2";
    const sizes = { type: "bar", x, y: found.sizes, customdata: hover, marker: { color: ink }, hovertemplate: "client %{customdata}: %{y} samples<extra></extra>" };
    const clients = { title: { text: "client" }, tickvals: ticks, ticktext: ticks.map((i) => names[i]), range: [-0.6, x.length - 0.4], showgrid: false, zeroline: false };
    if (!found.counts) return draw(place, [sizes], layout(260, { xaxis: clients, yaxis: { title: { text: "samples" } }, bargap: 0.15 }));
    const classes = found.counts.length;
    const held = {
      type: "heatmap", x, y: found.counts.map((_, c) => c), z: found.counts.map((row) => row.map((count) => count || null)), yaxis: "y2",
      customdata: found.counts.map(() => hover), hovertemplate: "client %{customdata}, class %{y}: %{z} samples<extra></extra>",
      colorscale: dark() ? SCALE : SCALE.map(([at], i) => [at, CIVIDIS[CIVIDIS.length - 1 - i]]), xgap: x.length > 80 ? 0 : 1, ygap: classes > 40 ? 0 : 1,
      hoverongaps: false, zmin: 0, zmax: found.counts.flat().reduce((a, b) => Math.max(a, b), 1), colorbar: { thickness: 10, len: 0.72, y: 0, yanchor: "bottom", title: { text: "samples" }, outlinewidth: 0 },
    };
    const height = Math.min(640, 190 + 17 * Math.max(classes, 6));
    return draw(place, [sizes, held], layout(height, {
      xaxis: { ...clients, anchor: "y2" }, bargap: 0.15,
      yaxis: { domain: [0.8, 1], title: { text: "samples" }, nticks: 3 },
      yaxis2: { domain: [0, 0.76], title: { text: "class" }, dtick: classes > 20 ? 5 : 1, showgrid: false, zeroline: false },
    }));
  }

  function driftRange() {
    const found = data.groups.flatMap((group) => (group.drift ? group.drift.values.flat() : [])).filter((v) => v !== null && v > 0);
    return found.length ? [found.reduce((a, b) => Math.min(a, b)), found.reduce((a, b) => Math.max(a, b))] : [0.1, 1];
  }

  function driftScale() {
    const scale = one("#drift-scale");
    if (!scale) return;
    const bar = document.createElement("i");
    bar.style.background = `linear-gradient(to right, ${CIVIDIS.join(",")})`;
    const words = driftRange().map((value) => value.toPrecision(2).replace(/\.?0+$/, ""));
    scale.replaceChildren(words[0], bar, words[1]);
  }

  function drift(place) {
    const group = data.groups[+place.dataset.index];
    place.hidden = state.hidden.has(group.label);
    if (place.hidden) return;
    const found = group.drift, [low, high] = driftRange();
    draw(place, [{
      type: "heatmap", x: found.round, y: found.layers.map(plain), z: found.values.map((row) => row.map((v) => (v > 0 ? Math.log10(v) : null))),
      customdata: found.values, colorscale: SCALE, zmin: Math.log10(low), zmax: Math.log10(high), showscale: false, ygap: 1,
      hovertemplate: "round %{x}, %{y}: %{customdata:.3~g}<extra></extra>", hoverongaps: false,
    }], layout(86 + Math.max(22, Math.min(30, 420 / found.layers.length)) * found.layers.length, {
      title: { text: plain(group.label), font: { size: 13.5 }, x: 0, xref: "paper", xanchor: "left", y: 1, yanchor: "top", pad: { t: 8 } },
      margin: { l: 56, r: 6, t: 32, b: 40 },
      xaxis: rounds(found.round.at(-1), { showgrid: false }), yaxis: { autorange: "reversed", showgrid: false, type: "category" },
    }));
  }

  function clients(place) {
    const traces = [];
    let metric = "accuracy";
    for (const group of shown()) {
      const found = group.clients;
      if (!found) continue;
      metric = found.metric;
      if (shown().length <= BANDS) traces.push(...band(group, found.round, found.low, found.high));
      traces.push(line(group, found.round, found.mean, { hovertemplate: "%{y:.4~g}" }));
      traces.push(line(group, found.round, found.worst, { line: { color: colour(group), width: 1.2, dash: "dot" }, mode: "lines", name: plain(group.label) + ", worst", hovertemplate: "%{y:.4~g}" }));
    }
    draw(place, traces, layout(340, { hovermode: "x unified", xaxis: rounds(last(shown(), (group) => group.round), { rangemode: "tozero" }), yaxis: { title: { text: `${plain(metric)} of a client` } } }));
  }

  function eachClient(place) {
    const groups = shown().filter((group) => group.clients && group.clients.last.length);
    const traces = groups.map((group) => ({
      type: "box", x: group.clients.last, name: plain(group.label), boxpoints: "all", jitter: 0.6, pointpos: 0, marker: { color: colour(group), size: 4, opacity: 0.7 },
      line: { width: 1.2, color: colour(group) }, fillcolor: "rgba(0,0,0,0)", hovertemplate: "%{x:.4~g}", orientation: "h",
    }));
    draw(place, traces, layout(70 + 38 * groups.length, { xaxis: { title: { text: "each client at the end" } }, yaxis: { autorange: "reversed" }, hovermode: "closest" }));
  }

  function lost(place) {
    const traces = shown().filter((group) => group.lost).map((group) => ({
      type: "bar", x: group.lost.round, y: group.lost.lost, name: plain(group.label), marker: { color: colour(group) }, hovertemplate: "round %{x}: %{y} lost",
      width: group.lost.round.map(() => 0.8 * group.lost.width),
    }));
    draw(place, traces, layout(220, { barmode: "stack", xaxis: { title: { text: "round" }, rangemode: "tozero" }, yaxis: { title: { text: "clients lost" }, rangemode: "tozero" } }));
  }

  function coverage(place) {
    const traces = shown().filter((group) => group.coverage.length).map((group) =>
      line(group, group.coverage.map((p) => p[0]), group.coverage.map((p) => p[1]), { hovertemplate: "%{x:.3~g} classes cover %{y:.3~g}" }));
    draw(place, traces, layout(340, { xaxis: { title: { text: "mean set size (classes)" } }, yaxis: { title: { text: "empirical coverage" } }, hovermode: "closest" }));
  }

  function bars(place, values, title, colours) {
    const names = Object.keys(values);
    const trace = { type: "bar", orientation: "h", x: Object.values(values), y: names.map(plain), marker: { color: colours }, hovertemplate: "%{y}: %{x:.4~g}<extra></extra>" };
    draw(place, names.length ? [trace] : [], layout(90 + 26 * names.length, { xaxis: { title: { text: title }, rangemode: "tozero" }, yaxis: { autorange: "reversed", type: "category", showgrid: false } }));
  }

  function diagnosisLayers(place) {
    const found = data.diagnoses[+place.dataset.index];
    bars(place, found.layers, "drift of a layer (1: equal updates)", Object.keys(found.layers).map((name) => (found.drifting.includes(name) ? "#D55E00" : dark() ? "#3d9fe0" : "#0072B2")));
  }

  function diagnosisCosts(place) {
    bars(place, data.diagnoses[+place.dataset.index].costs, "MB sent in a round", dark() ? "#1DBD8F" : "#009E73");
  }

  function curves(place, arms, title) {
    const traces = arms.map((arm) => line(arm, arm.round, arm.value, { hovertemplate: "%{y:.4~g}" }));
    place.hidden = !traces.length;
    if (traces.length) draw(place, traces, layout(420, {
      showlegend: true, legend: { orientation: "h", y: -0.18, itemwidth: 40 }, hovermode: "closest",
      xaxis: { title: { text: "round" }, rangemode: "tozero" }, yaxis: { title: { text: plain(title) } },
    }));
  }

  function diagnosisRace(place) {
    const found = data.diagnoses[+place.dataset.index];
    curves(place, found.race, `${found.metric} on validation data`);
  }

  const evidence = (place) => curves(place, data.curves[+place.dataset.index], "test accuracy");

  const CHARTS = {
    progress, federation, drift, clients, "each-client": eachClient, lost, coverage,
    "diagnosis-layers": diagnosisLayers, "diagnosis-costs": diagnosisCosts, "diagnosis-race": diagnosisRace, evidence,
  };

  const drawOne = (place) => CHARTS[place.dataset.chart](place);

  function drawAll() {
    driftScale();
    all("[data-chart]").forEach(drawOne);
    document.body.dataset.drawn = "yes";
  }

  // One after the other, so that a reader can scroll and click as soon as the first is there.
  async function drawInTurn() {
    driftScale();
    for (const place of all("[data-chart]")) {
      if (!place.isConnected || document.body.dataset.drawn) continue;
      drawOne(place);
      await new Promise((next) => setTimeout(next));
    }
    document.body.dataset.drawn = "yes";
  }

  function sample(group) {
    const made = (name, attributes) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      return element;
    };
    const svg = made("svg", { width: 26, height: 10, "aria-hidden": "true" });
    const dashes = group.dash === "solid" ? "" : group.dash.replace(/px/g, "");
    svg.append(made("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour(group), "stroke-width": 2.5, "stroke-dasharray": dashes }));
    return svg;
  }

  function chips() {
    const place = one("#chips");
    place.replaceChildren();
    if (data.groups.length < 2) return;
    for (const group of data.groups) {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.className = "chip";
      chip.title = "click: on or off; double click: this one alone";
      chip.setAttribute("aria-pressed", String(!state.hidden.has(group.label)));
      chip.append(sample(group), group.label);
      chip.addEventListener("click", () => {
        if (!state.hidden.delete(group.label)) state.hidden.add(group.label);
        refresh();
      });
      chip.addEventListener("dblclick", () => {
        state.hidden = new Set(data.groups.map((other) => other.label).filter((label) => label !== group.label));
        refresh();
      });
      place.append(chip);
    }
    const every = document.createElement("button");
    every.type = "button";
    every.textContent = "all";
    every.addEventListener("click", () => { state.hidden.clear(); refresh(); });
    place.append(every);
  }

  function refresh() {
    chips();
    drawAll();
  }

  function controls() {
    const choice = one("#metric");
    if (!choice) return;
    choice.replaceChildren(...data.metrics.map((metric) => new Option(metric.name, metric.key, false, metric.key === state.metric)));
    choice.addEventListener("change", () => { state.metric = choice.value; drawAll(); });
    for (const radio of all("input[name=axis]")) {
      radio.checked = radio.value === state.axis;
      radio.addEventListener("change", () => { state.axis = radio.value; drawAll(); });
    }
    one("#log").checked = state.log;
    one("#log").addEventListener("change", (event) => { state.log = event.target.checked; drawAll(); });
  }

  function theme(name) {
    root.dataset.theme = name;
    refresh();
  }

  function printing(on) {
    state.printing = on;
    state.theme = on ? root.dataset.theme : state.theme;
    for (const more of all("details")) more.open = on || more.dataset.open === "yes";
    theme(on ? "light" : state.theme);
  }

  async function news(version) {
    try {
      const found = await (await fetch(`state?seen=${version}`)).json();
      if (found.version !== version) {
        data = found.data;
        one("#content").innerHTML = found.content; // made and escaped like the page itself
        controls();
        refresh();
      }
      one("#live").textContent = "live";
      return found.version;
    } catch {
      one("#live").textContent = "not live: the server has stopped";
      return version;
    }
  }

  async function watch() {
    for (let version = ""; ; ) {
      version = await news(version);
      await new Promise((wait) => setTimeout(wait, 1500));
    }
  }

  async function load() {
    const packed = Uint8Array.from(atob(one("#plotly").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  async function start() {
    root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    one("#theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
    controls();
    chips();
    if (typeof DecompressionStream === "undefined") {
      for (const place of all("[data-chart]")) place.textContent = "Charts need a browser of 2023 or later.";
      return;
    }
    await load();
    await drawInTurn();
    addEventListener("beforeprint", () => printing(true));
    addEventListener("afterprint", () => printing(false));
    if (document.body.dataset.live) watch();
  }

  start();
})();
