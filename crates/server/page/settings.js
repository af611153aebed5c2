/** What the user has chosen, kept in localStorage. A blank sampling value leaves it to the server. */

const KEY = "mambo-settings";

/** Numbers a request may carry: name in the API, label, bounds and what it does. */
export const SAMPLING = [
  {
    name: "temperature",
    label: "Temperature",
    min: 0,
    max: 5,
    step: 0.05,
    help: "0 always takes the likeliest token; higher is more varied.",
  },
  {
    name: "top_p",
    label: "Top p",
    min: 0,
    max: 1,
    step: 0.01,
    help: "Choose among the likeliest tokens that make up this share.",
  },
  {
    name: "top_k",
    label: "Top k",
    min: 0,
    max: 1000,
    step: 1,
    help: "Choose among this many tokens; 0 means all.",
  },
  {
    name: "min_p",
    label: "Min p",
    min: 0,
    max: 1,
    step: 0.01,
    help: "Drop tokens less likely than this share of the likeliest.",
  },
  { name: "max_tokens", label: "Longest answer", min: 1, max: 1_000_000, step: 1, help: "In tokens." },
  {
    name: "seed",
    label: "Seed",
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    step: 1,
    help: "The same seed and messages give the same answer.",
  },
];

const DEFAULTS = {
  theme: "auto",
  model: "",
  effort: "",
  openReasoning: false,
  speak: "sentences",
  ...Object.fromEntries(SAMPLING.map(({ name }) => [name, ""])),
};

const CHOICES = {
  theme: ["auto", "light", "dark"],
  effort: ["", "none", "low", "medium", "high"],
  speak: ["sentences", "finished", "off"],
};

export class Settings extends EventTarget {
  #values = { ...DEFAULTS };

  constructor() {
    super();
    let stored = {};
    try {
      stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") ?? {};
    } catch {
      // Damaged or forbidden storage: the defaults hold.
    }
    for (const name of Object.keys(DEFAULTS))
      if (accepts(name, stored[name])) this.#values[name] = stored[name];
  }

  get(name) {
    return this.#values[name];
  }

  set(name, value) {
    if (!accepts(name, value) || this.#values[name] === value) return;
    this.#values[name] = value;
    try {
      localStorage.setItem(KEY, JSON.stringify(this.#values));
    } catch {
      // It still holds for this page.
    }
    this.dispatchEvent(new CustomEvent("change", { detail: name }));
  }

  /** Sets every sampling value back to the server's. */
  resetSampling() {
    for (const { name } of SAMPLING) this.set(name, "");
  }

  /** The fields of a request that the settings decide. */
  forRequest() {
    const fields = {};
    for (const { name } of SAMPLING) if (this.#values[name] !== "") fields[name] = this.#values[name];
    if (this.#values.effort !== "") fields.reasoning_effort = this.#values.effort;
    return fields;
  }
}

function accepts(name, value) {
  if (CHOICES[name]) return CHOICES[name].includes(value);
  const limits = SAMPLING.find((field) => field.name === name);
  if (limits)
    return value === "" || (typeof value === "number" && value >= limits.min && value <= limits.max);
  return typeof value === typeof DEFAULTS[name];
}
