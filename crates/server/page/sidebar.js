/** The list of conversations: open, rename, delete with undo, export and import. */

import { element, iconButton } from "./dom.js";

/**
 * @typedef {object} SidebarActions
 * @property {(id: string) => void} open
 * @property {(id: string, title: string) => Promise<void>} rename
 * @property {(id: string) => Promise<void>} remove
 * @property {() => Promise<void>} exportAll
 * @property {(file: File) => Promise<void>} importFile
 */

export class Sidebar {
  #list;
  #empty;
  #actions;
  #titles = [];
  #current = "";
  #busy = () => false;

  /** @param {SidebarActions} actions */
  constructor({ list, empty, foot }, actions, isBusy) {
    this.#list = list;
    this.#empty = empty;
    this.#actions = actions;
    this.#busy = isBusy;
    const file = element("input", {
      type: "file",
      accept: "application/json,.json",
      hidden: true,
      "aria-label": "File to import",
      onchange: async () => {
        if (file.files[0]) await actions.importFile(file.files[0]);
        file.value = "";
      },
    });
    foot.append(
      iconButton("download", "Export", () => actions.exportAll(), {
        showLabel: true,
        title: "Save all conversations as a file",
      }),
      iconButton("upload", "Import", () => file.click(), {
        showLabel: true,
        title: "Add conversations from a file",
      }),
      file,
    );
  }

  /** @param {{id: string, title: string}[]} titles */
  show(titles, current) {
    this.#titles = titles;
    this.#current = current;
    this.#empty.hidden = titles.length > 0;
    if (this.#list.querySelector("input")) return; // a name is being typed
    this.#list.replaceChildren(...titles.map((entry) => this.#row(entry)));
  }

  #row({ id, title }) {
    const current = id === this.#current;
    const link = element(
      "a",
      { href: `#/chat/${id}`, dir: "auto", title, "aria-current": current ? "true" : null },
      title,
    );
    const rename = iconButton("edit", `Rename ${title}`, () => this.#rename(row, { id, title }));
    const remove = iconButton("trash", `Delete ${title}`, () => this.#actions.remove(id));
    const row = element(
      "li",
      { class: current ? "current" : null, "data-id": id },
      link,
      this.#busy(id)
        ? element("span", { class: "busy-dot", role: "img", "aria-label": "being answered" })
        : null,
      rename,
      remove,
    );
    return row;
  }

  #rename(row, { id, title }) {
    const input = element("input", {
      type: "text",
      maxlength: 200,
      dir: "auto",
      "aria-label": "Name of the conversation",
    });
    input.value = title;
    let left = false;
    const leave = async (keep) => {
      if (left) return;
      left = true;
      const name = input.value.trim();
      input.remove();
      if (keep && name !== "" && name !== title) await this.#actions.rename(id, name);
      else this.show(this.#titles, this.#current);
      this.#list.querySelector(`[data-id="${id}"] a`)?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      leave(event.key === "Enter");
    });
    input.addEventListener("blur", () => leave(true));
    row.replaceChildren(input);
    input.select();
  }
}
