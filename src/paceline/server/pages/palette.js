// Colours of the lanes. They are told apart with normal sight and with each kind of colour blindness (a test computes
// it), and never the only sign: neighbouring batches differ, kinds of work are hatched, idle strips are labelled.

/** Bars of batch n have colour n modulo their number. Okabe and Ito's, in the order that keeps neighbours apart. */
export const BATCHES = ["#0072b2", "#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#d55e00"];

/** Kinds of work, how they are hatched, and what they are. */
export const KINDS = {
  prefill: "computes prompt tokens",
  decode: "computes one next token per request",
  mixed: "both in one batch",
};

/** Why a stage had nothing to do: [colour, what it means]. Sought for the largest least distance. */
export const CAUSES = {
  starved: ["#eebb55", "the stage before it still computes"],
  tokens_in_flight: ["#55ccff", "every request waits for its own last token"],
  pace: ["#229999", "held back so that batches stay even"],
  core: ["#dd5500", "waits for the engine core"],
  link: ["#bb55ff", "activations are under way"],
  blocks: ["#992211", "no free KV cache blocks"],
  startup: ["#115599", "the pipeline fills"],
  unattributed: ["#000000", "not explained"],
  no_work: ["#9aa0a6", "no request to work on"],
};

export const batchColour = (batch) => BATCHES[batch % BATCHES.length];
export const causeColour = (cause) => (CAUSES[cause] ?? CAUSES.unattributed)[0];
export const causeWords = (cause) => cause.replaceAll("_", " ");
