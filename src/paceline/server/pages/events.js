// Server-sent events from a fetch() reply: EventSource can neither send a key nor post a body.

/** The events of a reply, as {event, data}; comments are skipped. Ends with the stream. */
export async function* events(reply) {
  let rest = "";
  for await (const text of texts(reply.body)) {
    const blocks = (rest + text).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const found = eventOf(block);
      if (found !== null) yield found;
    }
  }
}

async function* texts(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function eventOf(block) {
  let event = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
