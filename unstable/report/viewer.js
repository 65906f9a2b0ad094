"use strict";
/* The game viewer: a list with filters, and one game, turn by turn. */

const RESULTS = { win: "won", draw: "drawn", loss: "lost" };
const view = { shown: [], at: -1, turn: 0, game: null, open: { observation: true } };
const chunks = new Map();

function unpack(number) {
  if (!chunks.has(number)) {
    const packed = document.getElementById(`chunk-${number}`).textContent;
    const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    chunks.set(number, new Response(stream).json());
  }
  return chunks.get(number);
}

const plain = (value, digits = 2) => value.toFixed(digits).replace("-", "−").replace(/\.?0+$/, "");
const signed = (value, digits = 2) => (value > 0 ? "+" : "") + plain(value, digits);
const share = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

/* The list */

/* Sampling mode of the seat whose result is shown; empty if no model played it. */
function sampling(row) {
  if (row.temperature === null) return [];
  return [row.temperature === 0 ? "greedy" : "sampled"];
}

const filters = {
  run: { label: "Run", of: (row) => [report.runs[row.run].label] },
  env: { label: "Game", of: (row) => [row.env] },
  purpose: { label: "Purpose", of: (row) => [row.purpose], words: { train: "training", eval: "evaluation" } },
  sampling: { label: "Sampling", of: (row) => sampling(row) },
  kinds: { label: "Against", of: (row) => row.kinds },
  result: { label: "Result", of: (row) => [row.result], words: RESULTS },
  forfeit: { label: "Forfeit", of: (row) => [row.forfeit === null ? "none" : "forfeited"] },
};

function filterBar() {
  const rows = report.games.rows;
  const bar = make("div", { class: "filters" });
  for (const [name, filter] of Object.entries(filters)) {
    const values = [...new Set(rows.flatMap(filter.of))].sort();
    if (values.length < 2) continue;
    filter.select = make("select", { id: `filter-${name}`, onchange: filterGames },
      make("option", { value: "" }, "all"),
      values.map((value) => make("option", { value }, filter.words?.[value] ?? value)));
    bar.append(make("label", {}, filter.label, filter.select));
  }
  const versions = rows.map((row) => row.version);
  const bound = (id, word, value) => make("label", {}, word,
    make("input", { id, type: "number", value, min: Math.min(...versions), max: Math.max(...versions), oninput: filterGames }));
  bar.append(bound("filter-from", "Version from", Math.min(...versions)),
    bound("filter-to", "to", Math.max(...versions)));
  return bar;
}

function passes(row) {
  for (const filter of Object.values(filters)) {
    if (filter.select?.value && !filter.of(row).includes(filter.select.value)) return false;
  }
  const bound = (id, otherwise) => {
    const { value } = document.getElementById(id);
    return value === "" ? otherwise : Number(value);
  };
  return row.version >= bound("filter-from", -Infinity) && row.version <= bound("filter-to", Infinity);
}

function filterGames() {
  view.shown = report.games.rows.map((row, index) => ({ row, index })).filter(({ row }) => passes(row));
  const list = document.getElementById("game-list");
  list.replaceChildren(...view.shown.map(({ row }, place) => make("div",
    { role: "option", id: `game-${place}`, class: "game-row", "aria-selected": "false", onclick: () => choose(place) },
    make("span", { class: "mono soft" }, `v${row.version}`),
    make("span", { class: "grow" }, `${report.runs.length > 1 ? `${report.runs[row.run].label} · ` : ""}${row.purpose} ${row.game} · ${row.against}`),
    row.forfeit === null ? null : make("span", { class: "soft" }, "forfeit"),
    make("span", { class: row.result }, RESULTS[row.result]))));
  document.getElementById("game-count").textContent =
    `${view.shown.length.toLocaleString("en")} of ${report.games.rows.length.toLocaleString("en")} games`;
  choose(view.shown.length ? 0 : -1);
}

async function choose(place) {
  const list = document.getElementById("game-list");
  list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
  view.at = place;
  list.removeAttribute("aria-activedescendant");
  const panel = document.getElementById("game");
  if (place < 0) {
    panel.replaceChildren(make("p", { class: "note" }, "No game matches these filters."));
    return;
  }
  const option = document.getElementById(`game-${place}`);
  option.setAttribute("aria-selected", "true");
  list.setAttribute("aria-activedescendant", option.id);
  if (list.contains(document.activeElement)) option.scrollIntoView({ block: "nearest" });
  const chosen = view.shown[place];
  const { row, index } = chosen;
  const games = await unpack(Math.floor(index / report.games.chunk));
  if (view.shown[view.at] !== chosen) return;
  Object.assign(view, { game: games[index % report.games.chunk], row, turn: 0 });
  show();
}

/* One game */

function mistaken(turn, position) {
  const action_values = position?.action_values;
  if (!action_values) return false;
  // A game may accept other spellings of a move than the listed one: these are unknown, not wrong.
  return turn.invalid || action_values[turn.action.trim()] < Math.max(...Object.values(action_values));
}

function steps() {
  const { game } = view;
  const chips = game.turns.map((turn, index) => make("button", {
    class: `chip seat-${turn.seat % 4} ${mistaken(turn, game.positions[index]) ? "mistake" : ""} ${turn.invalid ? "invalid" : ""}`,
    "aria-current": index === view.turn ? "step" : null,
    "aria-label": `turn ${index + 1}, seat ${turn.seat}`, onclick: () => step(index),
  }, String(index + 1)));
  chips.push(make("button", {
    class: "chip", "aria-current": view.turn === game.turns.length ? "step" : null, onclick: () => step(game.turns.length),
  }, "end"));
  return make("div", { class: "steps", role: "group", "aria-label": "Turns" },
    make("button", { class: "chip", "aria-label": "previous turn", onclick: () => step(view.turn - 1) }, "←"), chips,
    make("button", { class: "chip", "aria-label": "next turn", onclick: () => step(view.turn + 1) }, "→"));
}

function step(turn) {
  const { game } = view;
  if (!game) return;
  const held = document.activeElement?.closest?.(".steps") ? document.activeElement.textContent : null;
  view.turn = Math.max(0, Math.min(turn, game.turns.length));
  show();
  if (held) [...document.querySelectorAll(".steps button")].find((chip) => chip.textContent === held)?.focus();
}

function show() {
  const { game, row, turn } = view;
  const panel = document.getElementById("game");
  const seats = game.players.map((player, seat) => make("li", {},
    make("span", { class: `dot seat-${seat % 4}` }), `seat ${seat}: ${player}`,
    make("span", { class: "soft" }, ` · outcome ${signed(game.outcomes[seat])}`),
    seat === row.seat ? make("span", { class: row.result }, ` · ${RESULTS[row.result]}`) : null,
    seat === game.forfeit ? make("span", { class: "loss" }, " · forfeited") : null));
  panel.replaceChildren(
    make("h3", {}, `${row.env} · ${row.purpose === "eval" ? "evaluation" : "training"} game ${row.game}, version ${row.version}`,
      row.temperature === null ? "" : ` · ${row.temperature === 0 ? "greedy" : `temperature ${row.temperature}`}`),
    make("ul", { class: "seats" }, seats), steps(),
    turn < game.turns.length ? turnView(game, turn) : endView(game));
  Object.assign(panel.dataset, { turn, game: row.game });
}

function block(title, ...children) {
  return make("div", { class: "block" }, make("h4", {}, title), children);
}

function text(content, extra = {}) {
  return make("pre", { tabindex: 0, ...extra }, content === "" ? "(empty)" : content);
}

function folded(name, title, content) {
  return make("details", { open: view.open[name], ontoggle: (event) => { view.open[name] = event.target.open; } },
    make("summary", {}, title), text(content));
}

function endView(game) {
  const board = game.positions.length > game.turns.length ? game.positions[game.turns.length].board : "";
  return make("div", { class: "turn" },
    board ? block("Last board", text(board, { class: "board" })) : null,
    block("End of the game", make("p", {}, game.reason || "no reason recorded"),
      make("p", { class: "soft" }, `Payoffs ${game.payoffs.map((p) => signed(p)).join(", ")}${game.truncated ? " · truncated at max_turns" : ""}`)));
}

function turnView(game, index) {
  const turn = game.turns[index];
  const position = game.positions[index];
  return make("div", {},
    make("p", { class: "who" }, make("span", { class: `dot seat-${turn.seat % 4}` }),
      `Turn ${index + 1} of ${game.turns.length} · ${turn.player} at seat ${turn.seat}`,
      index < game.opening ? " · opening" : "", turn.invalid ? make("span", { class: "loss" }, " · rejected as invalid") : null),
    make("div", { class: "turn" },
      board(turn, position),
      make("div", {}, block("Answer", answer(turn)), facts(turn, position)),
      position?.action_values || position?.mix ? solution(turn, position) : null),
    folded("observation", "Observation", turn.observation),
    turn.prompt === undefined ? null : folded("prompt", "Exact prompt, decoded from its tokens", turn.prompt));
}

/* Compact prompts have their own notation of the position: X always belongs to the player to move. */
function board(turn, position) {
  if (!position?.board) return null;
  const own = position.prompted && turn.logprobs && turn.observation.includes(position.prompted);
  const shown = text(position.board, { class: "board" });
  if (!own) return block("Board", shown);
  return make("div", {}, block("Position in this prompt", text(position.prompted, { class: "board" })),
    block("Board of the game", shown));
}

function answer(turn) {
  if (!turn.logprobs) return text(turn.text);
  if (!turn.token_strings) return [text(turn.text), make("p", { class: "soft" }, `${turn.logprobs.length} tokens; the tokenizer is not available`)];
  const others = make("p", { class: "likeliest soft", "aria-live": "polite" }, turn.likeliest ? "Select a token to see its alternatives." : "");
  return [make("pre", { class: "tokens", tabindex: turn.likeliest ? null : 0 }, turn.token_strings.map((string, at) => {
    const logprob = turn.logprobs[at];
    if (logprob === null) return make("span", { class: "inserted", title: "inserted, not sampled" }, string);
    const token = make("span", { class: "token", title: `${share(Math.exp(logprob))} · log-probability ${plain(logprob, 3)}` }, string);
    if (turn.likeliest) {
      const show = () => others.replaceChildren(...likely(string, logprob, turn.likeliest[at]));
      token.tabIndex = 0;
      token.addEventListener("click", show);
      token.addEventListener("focus", show);
    }
    token.style.setProperty("--doubt", `${Math.min(70, Math.round(-24 * logprob))}%`);
    return token;
  })), turn.likeliest ? others : null, make("p", { class: "soft legend" }, make("span", { class: "token" }, "certain"),
    make("span", { class: "token doubt-1" }, "37 %"), make("span", { class: "token doubt-2" }, "5 % or less"),
    ` whole answer: ${share(Math.exp(turn.logprobs.reduce((sum, value) => sum + value, 0)))}`)];
}

function likely(string, logprob, found) {
  const shown = (text) => make("span", { class: "mono" }, JSON.stringify(text));
  const others = found.filter(([text]) => text !== string).flatMap(([text, value]) => [" · ", shown(text), ` ${share(Math.exp(value))}`]);
  return [shown(string), ` ${share(Math.exp(logprob))}`, ...(others.length ? ["; alternatives", ...others] : ["; no alternatives"])];
}

function facts(turn, position) {
  const rows = [["action", turn.action]];
  if (!turn.formatted) rows.push(["format", "no action found in the text"]);
  if (turn.rewards) {
    for (const [term, value] of Object.entries(turn.rewards)) {
      rows.push([`reward ${term}`, signed(value.raw, 3) + (value.raw === value.weighted ? "" : ` (weighted ${signed(value.weighted, 3)})`)]);
    }
  }
  if (turn.advantage !== undefined) rows.push(["advantage", `${signed(turn.advantage, 3)} (update ${turn.update})`]);
  if (turn.votes) rows.push(["votes", turn.votes]);
  if (turn.finish_reason === "length") rows.push(["finish", "truncated at max_tokens"]);
  if (turn.prompt_cut) rows.push(["prompt", `${turn.prompt_cut} tokens of old events omitted`]);
  return make("dl", { class: "turn-facts" }, rows.map(([name, value]) =>
    [make("dt", {}, name), make("dd", { class: name === "action" ? "mono" : null }, value)]));
}

function solution(turn, { action_values, mix }) {
  const table = action_values ?? mix;
  const best = Math.max(...Object.values(table));
  const played = turn.action.trim();
  const moves = Object.entries(table).sort((one, other) => other[1] - one[1]).map(([move, value]) => make("span",
    { class: `move ${action_values && value === best ? "best" : ""} ${move === played ? "played" : ""}` },
    make("span", { class: "mono" }, move), action_values ? ` ${signed(value) || "0"}` : ` ${share(value)}`));
  const known = played in table;
  let verdict = `The best move has value ${signed(best) || "0"}; `;
  if (!action_values) verdict = `Probability of each action${known ? "." : "; the played action is not among the listed actions."}`;
  else if (!known) verdict += `the played action is ${turn.invalid ? "not legal" : "not among the listed actions"}.`;
  else verdict += table[played] === best ? "it was played." : `the played move has value ${signed(table[played]) || "0"}.`;
  return block(action_values ? "Value of each move under perfect play" : "One equilibrium's policy",
    make("p", { class: mistaken(turn, { action_values }) ? "loss" : null }, verdict), make("div", { class: "moves" }, moves));
}

function keys(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, input")) return;
  const inList = event.target.closest("#game-list");
  const moves = {
    ArrowLeft: () => step(view.turn - 1), ArrowRight: () => step(view.turn + 1),
    ArrowUp: inList && (() => choose(Math.max(0, view.at - 1))),
    ArrowDown: inList && (() => choose(Math.min(view.shown.length - 1, view.at + 1))),
    Home: inList && (() => choose(0)), End: inList && (() => choose(view.shown.length - 1)),
  };
  const move = moves[event.key];
  if (!move || !view.shown.length) return;
  event.preventDefault();
  move();
}

function games() {
  if (!report.games.rows.length) return null;
  const list = make("div", { id: "game-list", role: "listbox", tabindex: 0, "aria-label": "Games" });
  const section = make("section", { id: "games", onkeydown: keys }, make("h2", {}, "Games"),
    make("p", { class: "note" }, `${report.games.rule} Select a game with ↑ ↓ in the list; step through its turns with ← →.`),
    filterBar(),
    make("div", { class: "viewer" },
      make("div", { class: "card list" }, make("p", { id: "game-count", class: "note", role: "status" }), list),
      make("div", { class: "card", id: "game" })));
  queueMicrotask(filterGames);
  return section;
}
