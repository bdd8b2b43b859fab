// One answer: streamed, measured, and stopped for good when the reader says so.

import { ApiError, call } from "/pages/api.js";
import { events } from "/pages/events.js";

/**
 * Stream the answer to a chat request. `grown(answer)` is called after each event. Closing the connection (`signal`)
 * makes the server abort the request, so nothing is computed for an answer that nobody reads.
 *
 * The answer: {id, text, ended: why it ended, error, prompt, cached, tokens: counts, firstToken, perSecond}.
 */
export async function stream(body, signal, grown) {
  const answer = { id: "", text: "", ended: "", error: "", prompt: 0, cached: 0, tokens: 0, firstToken: null, perSecond: null };
  const usage = { include_usage: true, continuous_usage_stats: true };
  const began = performance.now();
  let first = 0;
  try {
    const sent = { ...body, stream: true, stream_options: usage };
    const headers = { "X-Request-Id": "chat page" }; // a label for the monitor and the log
    const reply = await call("/v1/chat/completions", { method: "POST", body: sent, signal, headers });
    for await (const { data } of events(reply)) {
      if (data === "[DONE]") break;
      const now = performance.now();
      take(answer, JSON.parse(data));
      if (answer.tokens && !first) first = now;
      if (first) answer.firstToken = (first - began) / 1000;
      if (answer.tokens > 1 && now > first) answer.perSecond = (answer.tokens - 1) / ((now - first) / 1000);
      grown(answer);
    }
  } catch (error) {
    if (signal.aborted) answer.ended = "stopped by you";
    else answer.error = error instanceof ApiError ? error.message : `The server went away (${error.message}).`;
  }
  if (!answer.ended && !answer.error) answer.error = "The answer broke off: the server went away.";
  return answer;
}

function take(answer, event) {
  if (event.error) throw new ApiError(500, event.error.code, event.error.message);
  answer.id = event.id;
  const [choice] = event.choices;
  answer.text += choice?.delta?.content ?? "";
  answer.ended = choice?.finish_reason ?? answer.ended;
  if (event.usage) {
    answer.prompt = event.usage.prompt_tokens;
    answer.tokens = event.usage.completion_tokens;
    answer.cached = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
}

const ENDS = { length: "cut at the token limit", abort: "ended by the server", timeout: "its deadline passed" };

/** What was measured, as short texts to show beneath an answer. */
export function figures(answer) {
  const shown = [];
  if (answer.firstToken !== null) shown.push(`first token ${answer.firstToken.toFixed(2)} s`);
  if (answer.perSecond !== null) shown.push(`${answer.perSecond.toFixed(1)} tokens/s`);
  if (answer.tokens) shown.push(answer.tokens === 1 ? "1 token" : `${answer.tokens} tokens`);
  if (answer.prompt) shown.push(`${answer.cached} of ${answer.prompt} prompt tokens cached`);
  if (answer.ended && answer.ended !== "stop") shown.push(ENDS[answer.ended] ?? answer.ended);
  return shown;
}
