/** Shows the OpenAPI document of this server: its paths, their fields, and a command to try each. */

import { copyWithFeedback, element, iconButton } from "./dom.js";

const DEEPEST = 4;

/** The schema that a reference leads to, with its name. */
function resolved(schemas, schema) {
  const name = schema.$ref?.split("/").pop();
  return name ? { name, ...schemas[name], ...(schema.description && { description: schema.description }) } : schema;
}

/** The alternatives of a schema, `null` left out. */
function alternatives(schemas, schema) {
  const own = resolved(schemas, schema);
  const many = own.oneOf ?? own.anyOf;
  return many ? many.filter((one) => one.type !== "null").flatMap((one) => alternatives(schemas, one)) : [own];
}

/** A type in words, such as `list of string`. */
function typeName(schemas, schema) {
  const one = (own) => {
    if (own.enum) return own.enum.map((word) => JSON.stringify(word)).join(" | ");
    const types = [own.type ?? (own.allOf || own.properties ? "object" : "any")].flat().filter((type) => type !== "null");
    return types.map((type) => (type === "array" ? `list of ${typeName(schemas, own.items ?? {})}` : type)).join(" or ");
  };
  return [...new Set(alternatives(schemas, schema).map(one))].join(" or ");
}

/** Bounds and default of a field in words. */
function limits(schema) {
  const parts = [];
  if (schema.minimum !== undefined) parts.push(`from ${schema.minimum}`);
  if (schema.exclusiveMinimum !== undefined) parts.push(`above ${schema.exclusiveMinimum}`);
  if (schema.maximum !== undefined) parts.push(`to ${schema.maximum}`);
  if (schema.default !== undefined) parts.push(`default ${JSON.stringify(schema.default)}`);
  return parts.join(", ");
}

/** Text whose parts between backticks are code. */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

/** Every field of an object, also those of the parts it is made of, the required ones first. */
function fieldsOf(schemas, schema) {
  const own = resolved(schemas, schema);
  const required = new Set(own.required ?? []);
  const here = Object.entries(own.properties ?? {}).map(([name, field]) => ({ name, field, required: required.has(name) }));
  const all = [...(own.allOf ?? []).flatMap((part) => fieldsOf(schemas, part)), ...here];
  return all.sort((a, b) => b.required - a.required);
}

/** The objects that a field holds, directly or in a list. */
function objectsIn(schemas, schema) {
  return alternatives(schemas, schema).flatMap((own) => {
    if (own.items) return objectsIn(schemas, own.items);
    return own.properties || own.allOf ? [own] : [];
  });
}

function fieldList(schemas, schema, depth = 0) {
  const rows = fieldsOf(schemas, schema).map(({ name, field, required }) => {
    const text = field.description ?? alternatives(schemas, field)[0]?.description;
    const inner = depth < DEEPEST ? objectsIn(schemas, field) : [];
    return element(
      "div",
      {},
      element(
        "dt",
        {},
        element("code", {}, name),
        element("span", { class: "type" }, typeName(schemas, field)),
        required ? element("span", { class: "required" }, "required") : null,
        element("span", { class: "limits" }, limits(field)),
      ),
      text ? element("dd", {}, ...prose(text)) : null,
      ...inner.map((one) =>
        element(
          "dd",
          {},
          element("details", {}, element("summary", {}, one.name ?? "fields"), fieldList(schemas, one, depth + 1)),
        ),
      ),
    );
  });
  return element("dl", { class: "fields" }, ...rows);
}

/** A command that tries a path of this server. */
function curlOf(path, method, operation) {
  const url = new URL(path.replace("{name}", "default"), document.baseURI).href;
  if (method === "get") return `curl ${url}`;
  const example = JSON.stringify(operation.requestBody.content["application/json"].example);
  return `curl ${url} \\\n  -H 'content-type: application/json' \\\n  -d '${example.replaceAll("'", "'\\''")}'`;
}

function operationView(schemas, path, method, operation) {
  const curl = curlOf(path, method, operation);
  const request = operation.requestBody?.content["application/json"].schema;
  const answers = Object.entries(operation.responses["200"].content ?? {});
  const copy = iconButton("copy", "Copy the command", () => copyWithFeedback(copy, curl));
  const parts = [
    operation.description ? element("p", { class: "said" }, ...prose(operation.description)) : null,
    element("h3", {}, "Try it"),
    element("div", { class: "curl" }, element("pre", { tabindex: "0" }, curl), copy),
  ];
  if (request) parts.push(element("h3", {}, "Request"), fieldList(schemas, request));
  for (const [kind, content] of answers) {
    const item = content["x-item-schema"];
    const heading = element("h3", {}, item ? "Each event or line, " : "Answer, ", element("code", {}, kind));
    parts.push(heading);
    if (item || content.schema.$ref) parts.push(fieldList(schemas, item ?? content.schema));
  }
  const refusal = operation.responses["4XX"];
  if (refusal) {
    parts.push(element("h3", {}, "Refusals"), element("p", { class: "said" }, ...prose(refusal.description)));
    parts.push(fieldList(schemas, refusal.content["application/json"].schema));
  }
  return element(
    "details",
    { class: "operation", id: operation.operationId },
    element(
      "summary",
      {},
      element("span", { class: `method ${method}` }, method.toUpperCase()),
      element("code", {}, path),
      element("span", { class: "said" }, operation.summary ?? ""),
    ),
    element("div", { class: "operation-body" }, ...parts),
  );
}

function show(api) {
  const schemas = api.components.schemas;
  const groups = api.tags.map(({ name }) => {
    const views = Object.entries(api.paths).flatMap(([path, methods]) =>
      Object.entries(methods)
        .filter(([, operation]) => operation.tags.includes(name))
        .map(([method, operation]) => operationView(schemas, path, method, operation)),
    );
    return element("section", { id: `group-${name}` }, element("h2", {}, name), ...views);
  });
  const links = api.tags.map(({ name }) => element("a", { href: `#group-${name}` }, name));
  document.getElementById("groups").replaceChildren(...links);
  const about = element("p", { class: "said" }, ...prose(api.info.description));
  document.getElementById("paths").replaceChildren(about, ...groups);
}

/** Opens the path that the address names. */
function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named?.matches("details")) named.open = true;
  named?.scrollIntoView();
}

try {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  show(await response.json());
  openNamed();
  addEventListener("hashchange", openNamed);
} catch (error) {
  const problem = element("p", { role: "alert" }, `The document cannot be shown: ${error.message}. Is the server running?`);
  document.getElementById("paths").replaceChildren(problem);
}
