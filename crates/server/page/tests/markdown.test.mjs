/** The Markdown renderer: what it understands, what it refuses, and that streaming changes nothing. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { HOSTILE, MARKDOWN } from "./mock-answers.mjs";
import { html, installTinyDom } from "./tiny-dom.mjs";

installTinyDom();
const { MarkdownView, spokenText } = await import("../markdown.js");

function render(text) {
  const container = document.createElement("div");
  new MarkdownView(container).update(text, false);
  return container.childNodes.map(html).join("");
}

const CASES = [
  ["paragraphs", "one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"],
  [
    "emphasis",
    "**bold** *it* _it_ ***both*** ~~no~~",
    "<p><strong>bold</strong> <em>it</em> <em>it</em> <em><strong>both</strong></em> <del>no</del></p>",
  ],
  [
    "no emphasis inside words or round spaces",
    "snake_case_name 2 * 3 * 4 a ** b",
    "<p>snake_case_name 2 * 3 * 4 a ** b</p>",
  ],
  ["nested emphasis", "**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  ["unmatched marks are text", "**a and `b", "<p>**a and `b</p>"],
  ["escapes", "\\*a\\* \\`b\\` \\\\", "<p>*a* `b` \\</p>"],
  ["code spans", "`a *b*` `` c ` d ``", "<p><code>a *b*</code> <code>c ` d</code></p>"],
  ["headings", "# One #\n### Three", '<h3 class="heading-1">One</h3><h5 class="heading-3">Three</h5>'],
  ["no heading without a space", "#tag", "<p>#tag</p>"],
  ["rules", "a\n\n---\n***", "<p>a</p><hr></hr><hr></hr>"],
  ["tight list", "- a\n- b", "<ul><li>a</li><li>b</li></ul>"],
  ["loose list", "- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  [
    "nested lists, two spaces",
    "1. a\n  - b\n    - c\n2. d",
    "<ol><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ol>",
  ],
  ["ordered list from 3", "3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
  ["list after a paragraph", "text\n- a", "<p>text</p><ul><li>a</li></ul>"],
  ["a year is no list", "It was\n1986. A good year", "<p>It was\n1986. A good year</p>"],
  ["lazy lines", "- a\nb", "<ul><li>a\nb</li></ul>"],
  [
    "tasks",
    "- [x] a\n- [ ] b",
    '<ul><li class="task"><input type="checkbox" disabled="" checked=""></input>a</li><li class="task"><input type="checkbox" disabled=""></input>b</li></ul>',
  ],
  ["quotes", "> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
  [
    "links",
    "[a *b*](https://x.org/p_(q)) <https://y.org> https://z.org.",
    '<p><a href="https://x.org/p_(q)">a <em>b</em></a> <a href="https://y.org/">https://y.org</a> <a href="https://z.org/">https://z.org</a>.</p>',
  ],
  [
    "a link in bold",
    "**https://z.org**",
    '<p><strong><a href="https://z.org/">https://z.org</a></strong></p>',
  ],
  ["brackets that are no link", "[1] and a[0](", "<p>[1] and a[0](</p>"],
  [
    "forbidden links",
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](/etc/passwd)",
    '<p><span class="dead-link">a</span> <span class="dead-link">b</span> <span class="dead-link">c</span></p>',
  ],
  ["images are links", "![cat](https://x.org/c.png)", '<p><a href="https://x.org/c.png">🖼 cat</a></p>'],
  [
    "HTML is text",
    "<b>x</b> <script>y</script>",
    "<p>&lt;b&gt;x&lt;/b&gt; &lt;script&gt;y&lt;/script&gt;</p>",
  ],
  ["line breaks", "a  \nb\\\nc<br>d", "<p>a<br></br>b<br></br>c<br></br>d</p>"],
  [
    "formulas",
    "\\(a_1 * b_1\\) $$x_2$$ costs $5",
    '<p><code class="math">a_1 * b_1</code> <code class="math">x_2</code> costs $5</p>',
  ],
  [
    "table",
    "| a | b |\n|:-:|--:|\n| 1 \\| 2 | **3** |\n| 4 |",
    '<div class="table-scroll"><table><thead><tr><th class="align-center">a</th><th class="align-right">b</th></tr></thead><tbody><tr><td class="align-center">1 | 2</td><td class="align-right"><strong>3</strong></td></tr><tr><td class="align-center">4</td><td class="align-right"></td></tr></tbody></table></div>',
  ],
  ["no table without its second line", "| a | b |\n| 1 | 2 |", "<p>| a | b |\n| 1 | 2 |</p>"],
];

for (const [name, source, expected] of CASES) test(name, () => assert.equal(render(source), expected));

test("a code block keeps its text, colours it and shows hidden characters", () => {
  const drawn = render("```rust\nfn f() {} // x\u202e\n```\nafter");
  assert.match(drawn, /<span class="code-keyword">fn<\/span>/);
  assert.match(
    drawn,
    /<span class="code-comment">\/\/ x<span class="invisible-char">U\+202E<\/span><\/span>/,
  );
  assert.match(drawn, /<p>after<\/p>$/);
});

test("an open fence runs to the end; a longer one holds a shorter one", () => {
  assert.match(render("```\na"), /<pre><code>a<\/code><\/pre>/);
  assert.match(render("````\n```\n````"), /<code>```<\/code>/);
});

test("a fence in a list may lose its indent", () => {
  assert.match(
    render("1. a\n   ```\nx\n   ```\n2. b"),
    /<ol><li>a<div class="code-block">.*x.*<\/div><\/li><li>b<\/li><\/ol>/s,
  );
});

test("streaming ends where rendering at once ends", () => {
  for (const text of [
    MARKDOWN,
    HOSTILE.slice(0, 3000),
    "a\n```x``` b\n\n| c |\nd",
    ...CASES.map(([, source]) => source),
  ]) {
    const container = document.createElement("div");
    const view = new MarkdownView(container);
    const step = text.length > 1000 ? 7 : 1;
    for (let end = 1; end < text.length; end += step) view.update(text.slice(0, end), true);
    view.update(text, false);
    assert.equal(container.childNodes.map(html).join(""), render(text));
  }
});

test("markers never show while their second half is on its way", () => {
  const container = document.createElement("div");
  const view = new MarkdownView(container);
  const text =
    "Some **bold words** and `code` and [a link](https://example.org/long).\n\n- item\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nx\n```\n";
  for (let end = 1; end <= text.length; end += 1) {
    view.update(text.slice(0, end), true);
    const seen = container.textContent;
    assert.doesNotMatch(seen, /\*\*|`|\]\(|\|/, `after ${JSON.stringify(text.slice(0, end))}`);
  }
});

test("finished blocks are never drawn again", () => {
  const container = document.createElement("div");
  const view = new MarkdownView(container);
  view.update("# Title\n\nfirst\n\nsecond", true);
  const [title, first] = container.childNodes;
  for (const more of [" and", " and more\n\nthird", " and more\n\nthird\n\n```js\n1"])
    view.update(`# Title\n\nfirst\n\nsecond${more}`, true);
  view.update("# Title\n\nfirst\n\nsecond and more\n\nthird\n\n```js\n1\n```", false);
  assert.equal(container.childNodes[0], title);
  assert.equal(container.childNodes[1], first);
  assert.equal(container.childNodes.length, 5);
});

test("hostile text makes no element that could act and costs little", () => {
  const began = performance.now();
  const drawn = render(HOSTILE);
  // In this output "<" begins a real element; in text it is "&lt;".
  const acting = /<(?:script|img|iframe|object)|<[^>]*\son\w+=|href="(?!https?:)/i.exec(drawn);
  assert.equal(acting, null);
  const bombs = [
    "*a ".repeat(20_000),
    "[".repeat(50_000),
    "](".repeat(25_000),
    "[a](".repeat(12_000),
    "`".repeat(49_999),
    "\\(".repeat(25_000),
    `https://x${")".repeat(40_000)}`,
    `https://x${".".repeat(40_000)}y`,
    `${"*".repeat(49_000)}a`,
    `# ${" ".repeat(200_000)}x`,
    `\`\`\`${" ".repeat(200_000)}\``,
    `|${" ".repeat(200_000)}x\n|${" ".repeat(200_000)}y`,
    "> ".repeat(50_000),
    "- ".repeat(50_000),
    "1. a\n".repeat(20_000),
    "|".repeat(100_000),
    "![".repeat(20_000) + "](x)".repeat(20_000),
  ];
  for (const bomb of bombs) {
    const start = performance.now();
    render(bomb);
    const container = document.createElement("div");
    new MarkdownView(container).update(bomb, true);
    assert.ok(
      performance.now() - start < 1500,
      `${bomb.slice(0, 20)}… took ${Math.round(performance.now() - start)} ms`,
    );
  }
  assert.ok(performance.now() - began < 10_000);
});

test("spoken text has no marks", () => {
  assert.equal(
    spokenText("# Hi\n\n**bold** [link](https://x.org)\n\n```js\na\nb\n```", false),
    "Hi\nbold link\nCode block, 2 lines.",
  );
});
