/** How the page looks and behaves in a real browser: text, themes, phones, keyboard, assistive technology. */

import assert from "node:assert/strict";
import { ANSWERED, askAndWait, inPage, paleTexts, server, shoot } from "./in-page.mjs";

inPage("Markdown is drawn", async (page) => {
  await askAndWait(page, "/markdown");
  const seen = await page.evaluate(() => {
    const has = (selector) => document.querySelectorAll(`.assistant .body ${selector}`).length;
    return {
      h3: has("h3"),
      nested: has("ol ul ol"),
      code: has(".code-block"),
      keyword: has(".code-keyword"),
      table: has("td"),
      quote: has("blockquote"),
      boxes: has("input"),
      links: has("a[rel~=noopener][target=_blank]"),
    };
  });
  assert.deepEqual(
    { ...seen, keyword: seen.keyword > 5 },
    { h3: 1, nested: 1, code: 2, keyword: true, table: 9, quote: 1, boxes: 2, links: 2 },
  );
  await page.click(".code-block [data-copy]");
  await page.until("document.querySelector('.code-block .done')");
  await page.evaluate("document.querySelector('#transcript').scrollTop = 0");
  await shoot(page, "markdown-light");
  await page.media({ "prefers-color-scheme": "dark" });
  await shoot(page, "markdown-dark");
  await page.evaluate("document.querySelector('#transcript').scrollTop = 1e6");
  await shoot(page, "markdown-dark-end");
});

inPage("hostile Markdown does nothing", async (page) => {
  await askAndWait(page, "/hostile");
  const harm = await page.evaluate(() => ({
    harmed: window.harmed ?? null,
    elements: document.querySelectorAll(".markdown :is(script, img, iframe, object, embed, svg:not(.icon))")
      .length,
    links: [...document.querySelectorAll(".markdown a")]
      .map((a) => a.protocol)
      .filter((scheme) => !/^(https?|mailto):$/.test(scheme)),
    wide:
      document.documentElement.scrollWidth > innerWidth ||
      document.querySelector("#transcript").scrollWidth > document.querySelector("#transcript").clientWidth,
  }));
  assert.deepEqual(harm, { harmed: null, elements: 0, links: [], wide: false });
  await shoot(page, "hostile");
});

inPage("the keyboard alone is enough", async (page) => {
  await page.write("line one");
  await page.press("Shift+Enter");
  await page.write("line two");
  await page.press("Enter");
  await page.until(ANSWERED);
  assert.equal(server.requests.at(-1).messages.at(-1).content, "line one\nline two");
  await page.press("ArrowUp");
  await page.until("document.activeElement.className === 'edit-field'");
  await page.press("Escape");
  await page.until("!document.querySelector('.editing')");
  assert.equal(await page.evaluate("document.activeElement.dataset.action"), "edit");
  await page.press("Alt+m");
  await page.until("!document.querySelector('#model-view').hidden && document.querySelector('.model-name')");
  await page.press("Alt+m");
  await page.until("document.querySelector('#model-view').hidden");
  await page.press("Control+k");
  await page.until("document.querySelector('.welcome') && document.activeElement.id === 'input'");
  await page.evaluate("document.querySelector('#skip-link').focus()");
  const stops = [];
  for (let tab = 0; tab < 40; tab += 1) {
    if (tab > 0) await page.press("Tab");
    stops.push(
      await page.evaluate(() => {
        const node = document.activeElement;
        if (node === document.body) return null;
        const style = getComputedStyle(node);
        const ringed =
          node.id === "input"
            ? getComputedStyle(node.form).boxShadow !== "none"
            : style.outlineStyle !== "none";
        return { id: node.id || node.getAttribute("aria-label") || node.textContent.slice(0, 30), ringed };
      }),
    );
    if (tab > 5 && stops.at(-1) === null) break;
  }
  const named = stops.filter(Boolean);
  assert.equal(named[0].id, "skip-link");
  for (const id of ["new-chat", "to-model", "settings-button", "input", "effort"])
    assert.ok(
      named.some((stop) => stop.id === id),
      `${id} is not reached: ${JSON.stringify(named)}`,
    );
  assert.deepEqual(
    named.filter((stop) => !stop.ringed),
    [],
  );
});

inPage("the reader stays where they scrolled; at the end, the page follows", async (page) => {
  await askAndWait(page, "/long");
  const distance =
    "(() => { const t = document.querySelector('#transcript'); return t.scrollHeight - t.clientHeight - t.scrollTop; })()";
  await page.until(`${distance} < 5`);
  // The box grows while a long message is written; the end stays in sight.
  for (const line of ["one", "two", "three", "four"]) {
    await page.write(line);
    await page.press("Shift+Enter");
  }
  await page.until(`${distance} < 5`);
  await page.evaluate("document.querySelector('#input').select()");
  await page.write("/slow");
  await page.press("Enter");
  await page.until("[...document.querySelectorAll('.assistant')].at(-1).innerText.length > 300");
  await page.until(`${distance} < 45`);
  // Small steps, as from a touchpad, must get away from the end too.
  for (let step = 0; step < 40; step += 1) {
    const wheel = { type: "mouseWheel", x: 700, y: 300, deltaX: 0, deltaY: -15 };
    await page.send("Input.dispatchMouseEvent", wheel);
  }
  await page.until(`${distance} > 300`);
  await new Promise((resolve) => setTimeout(resolve, 400));
  const top = await page.evaluate("document.querySelector('#transcript').scrollTop");
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.equal(await page.evaluate("document.querySelector('#transcript').scrollTop"), top);
  await page.click("#to-end");
  await page.until(`${distance} < 45`);
  await page.press("Escape");
  await page.until(ANSWERED);
});

inPage("themes: the system's, light, dark", async (page) => {
  const paper = "getComputedStyle(document.body).backgroundColor";
  const light = await page.evaluate(paper);
  await page.media({ "prefers-color-scheme": "dark" });
  const dark = await page.evaluate(paper);
  assert.notEqual(light, dark);
  await page.click("#theme-button");
  await page.until(`${paper} === '${light}'`);
  await page.send("Page.reload");
  await page.until(`document.querySelector('.welcome') && ${paper} === '${light}'`);
  await page.click("#theme-button");
  await page.media({ "prefers-color-scheme": "light" });
  await page.until(`${paper} === '${dark}'`);
});

inPage("a phone 360 pixels wide", async (page) => {
  const fits = async (what) => {
    const wide = await page.evaluate(() => {
      const boxes = [
        document.documentElement,
        document.querySelector("#transcript"),
        document.querySelector("#model-view"),
      ];
      return boxes
        .filter((box) => box.scrollWidth > box.clientWidth)
        .map((box) => `${box.id || box.tagName} ${box.scrollWidth}`);
    });
    assert.deepEqual(wide, [], what);
  };
  await page.resize(360, 740, { touch: true });
  await page.until("innerWidth === 360");
  await shoot(page, "phone-welcome");
  await fits("welcome");
  await page.click("#input");
  await page.write("/markdown");
  await page.click("#send");
  await page.until(ANSWERED);
  await fits("answer");
  await shoot(page, "phone-answer");
  assert.equal(
    await page.evaluate("getComputedStyle(document.querySelector('#sidebar')).visibility"),
    "hidden",
  );
  await page.click("#open-sidebar");
  await page.until("document.activeElement.id === 'close-sidebar'");
  await new Promise((resolve) => setTimeout(resolve, 300));
  await shoot(page, "phone-drawer");
  await page.press("Escape");
  await page.until("document.activeElement.id === 'open-sidebar'");
  await page.click("#settings-button");
  await page.until("document.querySelector('dialog[open]')");
  await fits("settings");
  await shoot(page, "phone-settings");
  await page.press("Escape");
  const small = await page.evaluate(() =>
    [...document.querySelectorAll("button, .views a, select")]
      .map((node) => ({ node, box: node.getBoundingClientRect() }))
      .filter(
        ({ node, box }) =>
          box.width > 0 &&
          node.checkVisibility({ visibilityProperty: true }) &&
          (box.height < 32 || box.width < 32),
      )
      .map(({ node }) => node.outerHTML.slice(0, 80)),
  );
  assert.deepEqual(small, []);
  await page.click("#to-model");
  await page.until("document.querySelector('.legend li')");
  await new Promise((resolve) => setTimeout(resolve, 800));
  await fits("model");
  await shoot(page, "phone-model");
});

inPage("the model is drawn and moves", async (page) => {
  await page.resize(1200, 1900);
  await page.click("#to-model");
  await page.until("/[0-9]+ running/.test(document.querySelector('.card .big')?.innerText ?? '')");
  await page.until("document.querySelectorAll('.layer-chart .bar').length === 104");
  await page.until(
    "[...document.querySelectorAll('.layer-chart .bar')].every((bar) => Number(bar.getAttribute('height')) > 0)",
  );
  const first = await page.evaluate("document.querySelector('.expert-map').toDataURL()");
  await page.until((before) => document.querySelector(".expert-map").toDataURL() !== before, first);
  await shoot(page, "model-light");
  await page.media({ "prefers-color-scheme": "dark" });
  await new Promise((resolve) => setTimeout(resolve, 700));
  await shoot(page, "model-dark");
  await page.click(".model-column > details > summary");
  await page.until("document.querySelectorAll('.model-column > details tbody tr').length === 52");
  await page.click("#to-chat");
  await page.until("document.querySelector('#model-view').hidden");
});

inPage("assistive technology finds roles and names", async (page) => {
  await askAndWait(page, "/markdown");
  let nodes = await page.accessible();
  const has = (role, name) =>
    assert.ok(
      nodes.some(
        (node) => node.role === role && (name instanceof RegExp ? name.test(node.name) : node.name === name),
      ),
      `${role} ${name}`,
    );
  for (const [role, name] of [
    ["main", "Chat"],
    ["textbox", "Message"],
    ["button", "New chat"],
    ["button", "Settings"],
    ["button", /^Theme/],
    ["link", "Model"],
    ["complementary", "Conversations"],
    ["combobox", "Thinking"],
    ["heading", "You"],
    ["heading", "Answer"],
    ["article", /.*/],
    ["button", "Copy code"],
    ["button", "Try again"],
    ["region", "Messages"],
    ["table", /.*/],
    ["region", "Code, rust"],
  ])
    has(role, name);
  const nameless = () =>
    nodes.filter(
      (node) =>
        ["button", "link", "textbox", "combobox", "checkbox", "spinbutton"].includes(node.role) &&
        node.name.trim() === "",
    );
  assert.deepEqual(nameless(), []);
  assert.match(await page.text("#announcer"), /A tour of the renderer/);
  assert.doesNotMatch(await page.text("#announcer"), /\*\*|```/);
  await page.click("#settings-button");
  await page.until("document.querySelector('dialog[open]')");
  nodes = await page.accessible();
  has("dialog", "Settings");
  has("spinbutton", "Temperature");
  assert.deepEqual(nameless(), []);
  await page.press("Escape");
  await page.click("#to-model");
  await page.until("document.querySelector('.legend li')");
  nodes = await page.accessible();
  has("main", "Model");
  has("image", /^Layers in order/);
  has("image", /^How often each expert/);
  has("image", /^Memory: Weights 16\.9 GiB/);
  assert.deepEqual(nameless(), []);
});

inPage(
  "text stands out in both themes",
  async (page) => {
    await askAndWait(page, "/think");
    await askAndWait(page, "/markdown");
    await askAndWait(page, "/fail");
    for (const scheme of ["light", "dark"]) {
      await page.media({ "prefers-color-scheme": scheme });
      assert.deepEqual(await page.evaluate(paleTexts), []);
    }
    await page.click("#to-model");
    await page.until("document.querySelector('.legend li') && !document.querySelector('.stale')");
    for (const scheme of ["light", "dark"]) {
      await page.media({ "prefers-color-scheme": scheme });
      assert.deepEqual(await page.evaluate(paleTexts), []);
    }
  },
  { expected: /Failed to load resource/ },
);

inPage("a very long answer is drawn as quickly as a short one", async (page) => {
  const ms = await page.evaluate(async () => {
    const { MarkdownView } = await import("./markdown.js");
    const container = document.createElement("div");
    container.className = "markdown";
    document.querySelector("#messages").append(container);
    const view = new MarkdownView(container);
    const text =
      "## Part\n\nSome **bold** words and `code` in a paragraph of usual length.\n\n- one\n- two\n\n```js\nlet a = 1;\n```\n\n".repeat(
        4000,
      );
    view.update(text, true);
    const spent = [];
    for (let step = 1; step <= 100; step += 1) {
      const began = performance.now();
      view.update(text + "more words ".repeat(step), true);
      spent.push(performance.now() - began);
    }
    container.remove();
    // Other programs interrupt some of the updates, not most of them.
    return spent.sort((a, b) => a - b)[50];
  });
  assert.ok(ms < 16, `${ms} ms for each update`);
});
