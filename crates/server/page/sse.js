/** Server-sent events from a byte stream that may break anywhere: in a character, a line, a field. */

/** A line or an event longer than this is not from our server. */
const MAX_EVENT_CHARS = 16 * 1024 * 1024;

export class SseParser {
  #line = "";
  #afterCarriageReturn = false;
  #data = [];
  #size = 0;

  /**
   * @param {string} text the next piece of the stream
   * @returns {string[]} the data of the events it completes
   */
  feed(text) {
    const events = [];
    let start = 0;
    for (let at = 0; at < text.length; at += 1) {
      const char = text.charCodeAt(at);
      if (char !== 10 && char !== 13) continue;
      if (char === 10 && this.#afterCarriageReturn && at === start && this.#line === "") {
        // The second half of a CRLF whose first half has already ended the line.
        start = at + 1;
        this.#afterCarriageReturn = false;
        continue;
      }
      this.#endLine(this.#line + text.slice(start, at), events);
      this.#line = "";
      start = at + 1;
      this.#afterCarriageReturn = char === 13;
    }
    if (start < text.length) {
      this.#line += text.slice(start);
      this.#afterCarriageReturn = false;
    }
    if (this.#line.length > MAX_EVENT_CHARS) throw new Error("The server sent an endless line.");
    return events;
  }

  #endLine(line, events) {
    if (line === "") {
      if (this.#data.length > 0) events.push(this.#data.join("\n"));
      this.#data = [];
      this.#size = 0;
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field !== "data") return; // comments keep the connection alive; other fields are not used
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    this.#size += value.length;
    if (this.#size > MAX_EVENT_CHARS) throw new Error("The server sent an endless event.");
    this.#data.push(value);
  }
}

/**
 * The data of each event of a body.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* readEvents(body) {
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
    yield* parser.feed(decoder.decode());
  } finally {
    reader.cancel().catch(() => {});
  }
}
