/** How fast the model is in this tab: a table to share. */

const PROMPT_TOKENS = 256;
const ANSWER_TOKENS = 64;
const RUNS = 3;
const SENTENCE = "The river carries sand and stories past the old mill, where nobody has ground corn for years. ";

const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const number = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));

async function promptOf(model, tokens) {
  const each = (await model.tokens(SENTENCE)).length;
  // A beginning that no run before had, so that nothing is reused.
  return `${Math.random()} ${SENTENCE.repeat(Math.ceil(tokens / each))}`;
}

/**
 * @param {{ready(): Promise<object>, times: {loadedMs: number|null}}} engine
 * @param {(text: string) => void} tell how far it is
 * @returns {Promise<{rows: string[][], text: string}>}
 */
export async function benchmark(engine, tell) {
  const model = await engine.ready();
  const speeds = { prompt: [], answer: [], first: [] };
  for (let run = 1; run <= RUNS; run += 1) {
    tell(`Run ${run} of ${RUNS}`);
    for await (const piece of model.generate(await promptOf(model, PROMPT_TOKENS), { maxTokens: ANSWER_TOKENS, temperature: 1 })) {
      if (piece.type !== "finished") continue;
      const { promptTokens, reusedTokens, completionTokens, promptMs, completionMs } = piece.usage;
      speeds.prompt.push((1000 * (promptTokens - reusedTokens)) / promptMs);
      speeds.first.push(promptMs);
      if (completionTokens > 1) speeds.answer.push((1000 * (completionTokens - 1)) / completionMs);
    }
  }
  const { view } = model;
  const load = engine.times.loadedMs === null ? "–" : `${(engine.times.loadedMs / 1000).toFixed(2)} s`;
  const rows = [
    ["Model", "Runs on", `Prompt of ${PROMPT_TOKENS}, tokens/s`, "First token, ms", "Answer, tokens/s", "Loaded in"],
    [
      view.name,
      view.backend,
      number(median(speeds.prompt)),
      number(median(speeds.first)),
      speeds.answer.length > 0 ? number(median(speeds.answer)) : "–",
      load,
    ],
  ];
  const line = (cells) => `| ${cells.join(" | ")} |`;
  const text = [line(rows[0]), line(rows[0].map(() => "---")), ...rows.slice(1).map(line), "", `Browser: ${navigator.userAgent}`];
  return { rows, text: text.join("\n") };
}
