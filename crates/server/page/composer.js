/** The box a message is written in, with its send and stop button. */

import { icon } from "./dom.js";
import { fit } from "./message-view.js";

/** On a touch screen Enter makes a new line, as its keyboard shows. */
const touch = matchMedia("(hover: none) and (pointer: coarse)");

export class Composer {
  #input;
  #button;
  #busy = false;

  /**
   * @param {{form: HTMLFormElement, input: HTMLTextAreaElement, button: HTMLButtonElement}} elements
   * @param {{send: (text: string) => void, stop: () => void, editLast: () => void}} actions
   */
  constructor({ form, input, button }, actions) {
    this.#input = input;
    this.#button = button;
    const submit = () => {
      if (this.#busy || input.value.trim() === "") return;
      const text = input.value;
      this.text = "";
      actions.send(text);
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#busy) actions.stop();
      else submit();
      input.focus();
    });
    input.addEventListener("input", () => this.#drawn());
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey && !(touch.matches && !event.ctrlKey)) {
        event.preventDefault();
        submit();
      } else if (event.key === "ArrowUp" && input.value === "") {
        event.preventDefault();
        actions.editLast();
      }
    });
    // The rest of the frame is part of the box.
    form.addEventListener("click", (event) => {
      if (event.target === form) input.focus();
    });
    this.#drawn();
    this.busy = false;
  }

  get text() {
    return this.#input.value;
  }

  set text(value) {
    this.#input.value = value;
    this.#drawn();
  }

  focus() {
    // A touch keyboard that opens by itself hides half of the page.
    if (!touch.matches) this.#input.focus();
  }

  /** While an answer is written, the button stops it. */
  set busy(busy) {
    this.#busy = busy;
    const label = busy ? "Stop" : "Send";
    this.#button.replaceChildren(icon(busy ? "stop" : "send"));
    this.#button.setAttribute("aria-label", label);
    this.#button.title = busy ? "Stop (Esc)" : "Send (Enter)";
    this.#button.classList.toggle("stop", busy);
    this.#drawn();
  }

  #drawn() {
    fit(this.#input);
    this.#button.disabled = !this.#busy && this.#input.value.trim() === "";
  }
}
