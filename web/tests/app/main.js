import { load } from "mambo-web";

const answer = document.querySelector("#answer");
const model = await load("tiny-hybrid.gguf");
for await (const piece of model.chat([{ role: "user", content: "What is 17 + 25?" }], { temperature: 0, thinking: false }))
  if (piece.type === "content") answer.append(piece.text);
answer.after(Object.assign(document.createElement("p"), { id: "done", textContent: model.view.backend }));
