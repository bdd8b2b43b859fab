// A scripted load, so that there is something to see: 20 requests, some with long prompts, some with long answers.

import { call } from "/pages/api.js";

const LONG = "A stage computes its layers for one batch while the stage before it computes the next batch. ";

// Browsers open few connections to one server, so requests travel in groups: one call with several prompts each.
// seconds after the start, tokens per answer, repetitions of the long sentence in each prompt
const GROUPS = [
  [0.0, 48, [0, 4, 0, 10, 0]],
  [0.6, 96, [0, 0, 24, 0, 0]],
  [1.4, 64, [6, 0, 0, 14, 0]],
  [2.4, 120, [0, 2, 0, 0, 8]],
];
const TOPICS = ["the sea", "a lighthouse", "clouds", "a railway", "the moon"];

/** How many requests {@link sendSamples} sends. */
export const SAMPLES = GROUPS.reduce((sum, [, , prompts]) => sum + prompts.length, 0);

/** Send them; settles when all are answered, or at the first refusal. Aborting `signal` ends what runs. */
export async function sendSamples(signal) {
  const run = Math.floor(Math.random() * 1e6); // else the prefix cache would know the prompts the second time
  await Promise.all(
    GROUPS.map(async ([delay, tokens, repetitions], group) => {
      await pause(delay * 1000, signal);
      const prompt = repetitions.map((times, place) => `${run} ${group} ${LONG.repeat(times)}A story about ${TOPICS[place]}:`);
      // Streamed: when the reader aborts one request of a group, the others go on.
      const body = { prompt, max_tokens: tokens, ignore_eos: true, temperature: 0.8, stream: true };
      const reply = await call("/v1/completions", { method: "POST", body, signal, headers: { "X-Request-Id": `sample group ${group + 1}` } });
      await reply.text();
    }),
  );
}

function pause(milliseconds, signal) {
  return new Promise((settle, refuse) => {
    const timer = setTimeout(settle, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      refuse(signal.reason);
    });
  });
}
