"use strict";
// The rollout viewer: sampled above trained. All that a model wrote becomes text by textContent, never markup.
(async () => {
  const at = (id) => document.getElementById(id);
  const lanes = at("lanes");
  if (!lanes) return;
  const data = JSON.parse(await unpacked("rollouts-data"));
  const ROLES = { p: "prompt", a: "assistant", t: "tool" };
  const LONGEST = 26; // characters of a token that are shown; all of them in the panel
  const OFF = Math.log(1.1); // as the metric importance_sampling_ratio/outside_10_percent
  let shown = null; // the rollout, its columns and turns
  let turn = 0;
  let token = 0;

  const make = (tag, classes, text) => {
    const made = document.createElement(tag);
    if (classes) made.className = classes;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (s) => "␣".repeat(s.length));
  const short = (text) => (text.length > LONGEST ? text.slice(0, LONGEST - 1) + "…" : text);
  const bit = (mask, index) => (mask === null ? null : mask[index] === "1");
  const number = (value, digits) => {
    if (value === null || value === undefined) return "not recorded";
    return typeof value === "number" ? value.toFixed(digits) : value;
  };

  // one entry per pair of tokens that stand above each other; null where a lane has none
  const columnsOf = (rollout) => {
    const columns = [];
    for (const [kind, a, b, c, d] of rollout.edits)
      for (let k = 0; k < Math.max(b - a, d - c); k++)
        columns.push({ kind, sampled: a + k < b ? a + k : null, trained: c + k < d ? c + k : null });
    return columns;
  };

  // a turn: the columns between two changes of role, by the upper lane where it has a token
  const turnsOf = (rollout, columns) => {
    const turns = [];
    columns.forEach((column, index) => {
      const known = column.sampled !== null;
      const role = known ? rollout.sampled_role[column.sampled] : rollout.role[column.trained];
      const last = turns[turns.length - 1];
      if (last && (last.role === role || !known)) last.columns.push(index);
      else turns.push({ role, columns: [index] });
    });
    return turns;
  };

  const gapOf = (rollout, index) => {
    const [sampler, trainer] = [rollout.sampler[index], rollout.trainer && rollout.trainer[index]];
    return typeof sampler === "number" && typeof trainer === "number" ? trainer - sampler : null;
  };

  const sampledToken = (rollout, column) => {
    if (column.sampled === null) return make("span", "token gone", "∅");
    const made = make("span", "token " + rollout.sampled_role[column.sampled], short(visible(data.texts[rollout.sampled_ids[column.sampled]])));
    if (column.kind !== "equal") made.classList.add("other");
    return made;
  };

  const trainedToken = (rollout, column) => {
    const index = column.trained;
    if (index === null) return make("span", "token gone", "∅");
    const made = make("span", "token " + rollout.role[index], short(visible(data.texts[rollout.ids[index]])));
    const gap = gapOf(rollout, index);
    if (column.kind !== "equal") made.classList.add("other");
    if (bit(rollout.loss, index) === false) made.classList.add("uncounted");
    if (bit(rollout.attention, index) === false) made.classList.add("hidden");
    if (gap !== null && Math.abs(gap) > OFF) made.classList.add("off");
    return made;
  };

  const facts = (rollout, column) => {
    const { sampled, trained } = column;
    const said = [];
    if (sampled !== null) said.push(["sampled id", rollout.sampled_ids[sampled]]);
    if (trained !== null) said.push(["trained id", rollout.ids[trained]]);
    if (sampled === null) said.push(["sampled", "no: added in training"]);
    if (trained === null) said.push(["trained", "no: missing in training"]);
    said.push(["role", ROLES[sampled !== null ? rollout.sampled_role[sampled] : rollout.role[trained]]]);
    const yes = (value) => (value === null ? "not recorded" : value ? "yes" : "no");
    if (trained !== null) {
      said.push(["counted by the loss", yes(bit(rollout.loss, trained))]);
      said.push(["seen by the policy", yes(bit(rollout.attention, trained))]);
    }
    const own = trained !== null ? rollout.sampler[trained] : rollout.sampled_logprobs[sampled];
    said.push(["log-probability, sampler", own === null ? "not sampled" : number(own, 4)]);
    if (trained !== null) {
      const trainer = rollout.trainer && rollout.trainer[trained];
      const gap = gapOf(rollout, trained);
      said.push(["log-probability, trainer", trainer === null ? "not needed or not recorded" : number(trainer, 4)]);
      said.push(["gap, trainer minus sampler", gap === null ? "none" : (gap >= 0 ? "+" : "") + gap.toFixed(4)]);
      said.push(["advantage", bit(rollout.loss, trained) === false ? "none, not counted" : number(rollout.advantage, 4)]);
    }
    return said;
  };

  const textOf = (rollout, column) =>
    data.texts[column.sampled !== null ? rollout.sampled_ids[column.sampled] : rollout.ids[column.trained]];

  const tell = (index) => {
    const column = shown.columns[index];
    const list = make("dl");
    for (const [name, value] of facts(shown.rollout, column)) {
      const pair = make("div");
      pair.append(make("dt", "", name + ":"), make("dd", "", String(value)));
      list.append(pair);
    }
    at("token").replaceChildren(make("div", "text", visible(textOf(shown.rollout, column))), list);
  };

  const heading = (rollout, each, place, count) => {
    const columns = each.columns.map((index) => shown.columns[index]);
    const above = columns.filter((column) => column.sampled !== null).length;
    const below = columns.filter((column) => column.trained !== null);
    const unseen = below.filter((column) => bit(rollout.attention, column.trained) === false).length;
    const said = [`Turn ${place + 1} of ${count}: ${ROLES[each.role]}`, `${above} tokens sampled, ${below.length} trained`];
    if (unseen) said.push(unseen === below.length ? "NOT SEEN by the policy when the loss is computed" : `${unseen} not seen by the policy`);
    return said.join(" · ");
  };

  const drawTurn = (rollout, each, place, count) => {
    const section = make("div", "turn");
    const title = heading(rollout, each, place, count);
    const columns = make("div", "columns");
    const names = make("span", "column");
    names.append(make("span", "lane", "sampled"), make("span", "lane", "trained"));
    names.setAttribute("aria-hidden", "true");
    columns.append(names);
    for (const index of each.columns) {
      const column = shown.columns[index];
      const made = make("span", "column");
      made.append(sampledToken(rollout, column), trainedToken(rollout, column));
      made.tabIndex = -1;
      made.dataset.column = index;
      made.setAttribute("role", "img");
      made.setAttribute("aria-label", visible(textOf(rollout, column)) + "; " + facts(rollout, column).map((pair) => pair.join(" ")).join("; "));
      columns.append(made);
    }
    section.append(make("h4", "", title), columns);
    section.setAttribute("role", "group");
    section.setAttribute("aria-label", title);
    return section;
  };

  const toTurn = (place, scroll) => {
    turn = Math.min(Math.max(place, 0), shown.turns.length - 1);
    [...lanes.children].forEach((child, index) => {
      child.classList.toggle("now", index === turn);
      if (index === turn) child.setAttribute("aria-current", "true");
      else child.removeAttribute("aria-current");
    });
    at("previous-turn").disabled = turn === 0;
    at("next-turn").disabled = turn === shown.turns.length - 1;
    token = shown.turns[turn].columns[0];
    tell(token);
    if (scroll) lanes.children[turn].scrollIntoView({ block: "nearest" });
  };

  const toToken = (index) => {
    const next = Math.min(Math.max(index, 0), shown.columns.length - 1);
    const place = shown.turns.findIndex((each) => each.columns.includes(next));
    if (place !== turn) toTurn(place, true);
    token = next;
    lanes.querySelector(`[data-column="${next}"]`).focus();
  };

  const armNow = () => data.arms[at("arm").selectedIndex];
  const steps = () => [...new Set(armNow().rollouts.map((rollout) => rollout.step))];
  const rolloutsNow = () => armNow().rollouts.filter((rollout) => rollout.step === Number(at("step").value));

  const fill = (select, values, wanted) => {
    select.replaceChildren(...values.map(([value, text]) => {
      const option = make("option", "", text);
      option.value = value;
      return option;
    }));
    if (values.some(([value]) => String(value) === wanted)) select.value = wanted;
  };

  const show = () => {
    const rollouts = rolloutsNow();
    const place = at("rollout").selectedIndex;
    const rollout = rollouts[place];
    const columns = columnsOf(rollout);
    shown = { rollout, columns, turns: turnsOf(rollout, columns) };
    at("previous-rollout").disabled = place === 0;
    at("next-rollout").disabled = place === rollouts.length - 1;
    at("about").textContent =
      `${armNow().arm} (changes: ${armNow().changes}), seed ${armNow().seed}, row ${rollout.row}, reward ${number(rollout.reward, 3)}, ` +
      `advantage ${number(rollout.advantage, 3)}, ended as ${rollout.outcome}. ${rollout.says}`;
    lanes.replaceChildren(...shown.turns.map((each, index) => drawTurn(rollout, each, index, shown.turns.length)));
    toTurn(0, false);
  };

  const chooseStep = () => {
    fill(at("rollout"), rolloutsNow().map((r) => [r.rollout, `${r.rollout} (group ${r.group}, reward ${number(r.reward, 2)})`]), at("rollout").value);
    show();
  };
  const chooseArm = () => {
    fill(at("step"), steps().map((step) => [step, step]), at("step").value);
    chooseStep();
  };
  const toRollout = (by) => {
    const next = at("rollout").selectedIndex + by;
    if (next < 0 || next >= at("rollout").options.length) return;
    at("rollout").selectedIndex = next;
    show();
    lanes.focus();
  };

  fill(at("arm"), data.arms.map((each) => [each.arm, each.arm]), "case");
  at("arm").addEventListener("change", chooseArm);
  at("step").addEventListener("change", chooseStep);
  at("rollout").addEventListener("change", show);
  at("previous-turn").addEventListener("click", () => toTurn(turn - 1, true));
  at("next-turn").addEventListener("click", () => toTurn(turn + 1, true));
  at("previous-rollout").addEventListener("click", () => toRollout(-1));
  at("next-rollout").addEventListener("click", () => toRollout(1));
  const columnAt = (event) => event.target.closest("[data-column]");
  lanes.addEventListener("pointerover", (event) => {
    if (columnAt(event)) tell(Number(columnAt(event).dataset.column));
  });
  lanes.addEventListener("focusin", (event) => {
    if (columnAt(event)) tell(token = Number(columnAt(event).dataset.column));
  });
  lanes.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const rollouts = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey || (steps ?? rollouts) === undefined) return;
    event.preventDefault();
    if (rollouts) toRollout(rollouts);
    else if (event.shiftKey) toToken(token + (lanes === document.activeElement ? 0 : steps));
    else toTurn(turn + steps, true);
  });
  chooseArm();
})();
