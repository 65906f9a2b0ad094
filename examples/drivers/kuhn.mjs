// Kuhn poker as in kuhn.py, in JavaScript for Node 18 or later without packages.
//
//   unstable train --config examples/drivers/kuhn.yaml --games.0.env driver --listen.port 8100
//   node examples/drivers/kuhn.mjs http://127.0.0.1:8100 64
//
// The second argument is the number of concurrent games. UNSTABLE_DRIVER_TOKEN is the token of a run
// that requires one.

const RULES =
  "Kuhn poker with a jack, a queen and a king; the higher card wins the pot, and chips of all " +
  "rounds add up. A line is your card, the round, your lead in chips before it, the moves of the " +
  "round, and after the colon the actions that you may choose from. Answer with one of these, " +
  "nothing else.";
const DEALS = ["JQ", "JK", "QJ", "QK", "KJ", "KQ"];
const OPEN = ["check", "bet"], ANSWER = ["fold", "call"];
const LEGAL = { "": OPEN, " check": OPEN, " bet": ANSWER, " check bet": ANSWER }; // other moves end the hand
const [url, atOnce = "1"] = process.argv.slice(2);
const starts = Date.now() + 120_000; // deadline for the run to listen
let met = false; // whether the run has answered

async function post(address, key, body) { // status 0: no answer
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  try {
    const reply = await fetch(address, { method: "POST", headers, body: JSON.stringify(body) });
    return { status: reply.status, text: await reply.text() };
  } catch (error) {
    return { status: 0, text: `${error.cause ?? error}` };
  }
}

async function ask({ base_url, api_key }, content, legal_moves) {
  const messages = [{ role: "user", content }];
  const body = { model: "seat", messages, legal_moves };
  const reply = await post(`${base_url}/chat/completions`, api_key, body);
  if (reply.status !== 200) throw new Error(`${reply.status} ${reply.text}`);
  return JSON.parse(reply.text).choices[0].message.content;
}

function drawn(seed) { // one of 12 starts, equal for equal seeds
  let x = seed ^ Math.floor(seed / 2 ** 32);
  for (const factor of [0x85ebca6b, 0xc2b2ae35]) x = Math.imul(x ^ (x >>> 16), factor);
  return ((x ^ (x >>> 16)) >>> 0) % 12;
}

async function play(game) { // plays a hand; returns its result
  const cards = DEALS[drawn(game.seed) >> 1];
  let seat = drawn(game.seed) & 1, moves = "", move;
  for (; moves in LEGAL; seat = 1 - seat) {
    const legal = LEGAL[moves];
    const asked = `${RULES}\n${cards[seat]} 1/1 +0${moves}: ${legal.join(" ")}`;
    move = await ask(game.seats[seat], asked, legal);
    if (!legal.includes(move)) return { forfeit: seat, reason: `seat ${seat} answers ${move}` };
    moves += ` ${move}`;
  }
  const best = "JQK".indexOf(cards[0]) > "JQK".indexOf(cards[1]) ? 0 : 1;
  const winner = move === "fold" ? seat : best; // after a fold the bettor is next
  const chips = move === "call" ? 2 : 1;
  return { payoffs: [0, 1].map((each) => (each === winner ? chips : -chips)) };
}

async function drive() { // plays until the run ends; returns the number of games
  for (let played = 0; ; ) {
    const reply = await post(`${url}/games`, process.env.UNSTABLE_DRIVER_TOKEN, {});
    if (reply.status === 410 || (met && !reply.status)) return played;
    met ||= reply.status === 200 || reply.status === 204; // 204: no game for half a minute
    if (reply.status === 200) {
      const game = JSON.parse(reply.text);
      const result = await play(game).catch((error) => ({ error: `${error}`.slice(0, 300) }));
      await post(game.result_url, game.result_key, result);
      played += 1;
    } else if (reply.status ? reply.status !== 204 : Date.now() > starts) {
      throw new Error(`${url}: ${reply.status} ${reply.text}`);
    } else if (!met) await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

const counts = await Promise.all(Array.from({ length: Number(atOnce) }, drive));
console.log(`${counts.reduce((sum, each) => sum + each, 0)} games played`);
