// A conversation as a Markdown file: the path that is shown, for people to read. Each message begins with a comment,
// which Markdown hides and by which the file can be read again. Files of others are read by their headings.

import { Chat, titleOf } from "../chat/chat.js";

const MARK = /^<!-- moeinf: (system|user|assistant)(?: (.*?))? -->$/;
const MARKED = /^\\*<!-- moeinf: /;
const PICTURE = /^!\[([^\]\n]*)\]\(data:(image\/(?:png|jpeg));base64,([A-Za-z0-9+/]+={0,2})\)$/;
const HEADING = /^(?:#{1,6}\s*|\*\*)(system|you|user|human|assistant|answer|model|ai|chatgpt|claude)\b[^\n]{0,80}?$/i;
const ROLES = { system: "system", you: "user", user: "user", human: "user" };

/** The text of a file with the conversation of a record. */
export function toMarkdown(record) {
  const chat = new Chat(record);
  const parts = [`# ${chat.title || "Conversation"}`];
  if (chat.settings.system) parts.push(section("system", "", "System", [chat.settings.system]));
  for (const node of chat.path) {
    if (node.role === "assistant") {
      parts.push(section("assistant", node.model ?? "", node.model || "Answer", [...callsOf(node), node.content]));
    } else {
      const pictures = (node.pictures ?? []).map(
        ({ name, type, data }) => `![${plain(name)}](data:${type};base64,${data})`,
      );
      const files = (node.files ?? []).map((file) => `${plain(file.name)}:\n\n~~~~~~\n${file.text}\n~~~~~~`);
      parts.push(section("user", "", "You", [...pictures, ...files, node.content]));
    }
  }
  return `${parts.join("\n\n")}\n`;
}

function section(role, model, heading, parts) {
  const mark = `<!-- moeinf: ${[role, plain(model)].filter(Boolean).join(" ")} -->`;
  const body = parts.filter(Boolean).join("\n\n");
  const kept = body.split("\n").map((line) => (MARKED.test(line) ? `\\${line}` : line));
  return [mark, `## ${plain(heading)}`, "", ...kept].join("\n");
}

function callsOf({ calls = [] }) {
  return calls.map(({ name, arguments: given, result, pictures = [] }) => {
    const whole = [result, ...pictures.map(() => "[A picture, which is left out]")].filter(Boolean).join("\n");
    const told = `${name} ${JSON.stringify(given, null, 1)}\n\n${whole}`.replaceAll("~~~~~~", "~~~~~");
    return `~~~~~~ call\n${told}\n~~~~~~`;
  });
}

const plain = (text) => (text ?? "").replace(/[[\]\n]|--+>?/g, " ").trim();

/** The record of the conversation in a file, under a new id. Raises an Error whose message says what is wrong. */
export function fromMarkdown(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const sections = lines.some((line) => MARK.test(line)) ? marked(lines) : headed(lines);
  if (!sections.some(({ role }) => role !== "system")) {
    throw new Error("it has no headings such as You and Assistant, by which messages could be told apart");
  }
  const chat = new Chat();
  chat.title = titleOf(/^# (.+)$/.exec(lines.find((line) => line.trim()) ?? "")?.[1] ?? "");
  for (const { role, model, body } of sections) {
    if (role === "system") chat.settings.system = body.join("\n").trim();
    else if (role === "user") chat.add(chat.leaf, role, ...withPictures(body));
    else chat.add(chat.leaf, role, body.join("\n").trim(), { model, ended: "" });
  }
  return chat.record();
}

function marked(lines) {
  const sections = [];
  for (const [at, line] of lines.entries()) {
    const mark = MARK.exec(line);
    if (mark) sections.push({ role: mark[1], model: mark[2] ?? "", body: [] });
    else if (!(MARK.test(lines[at - 1] ?? "") && line.startsWith("## "))) {
      sections.at(-1)?.body.push(MARKED.test(line) ? line.slice(1) : line);
    }
  }
  return sections;
}

function headed(lines) {
  const sections = [];
  for (const line of lines) {
    const heading = HEADING.exec(line.trim());
    const role = heading && (ROLES[heading[1].toLowerCase()] ?? "assistant");
    if (role) sections.push({ role, model: "", body: [] });
    else sections.at(-1)?.body.push(line);
  }
  return sections.filter(({ body }) => body.join("").trim());
}

/** The text of a question, and the pictures that stand in it. */
function withPictures(body) {
  const pictures = body.map((line) => PICTURE.exec(line)).filter(Boolean);
  const rest = body.filter((line) => !PICTURE.test(line)).join("\n");
  return [rest.trim(), { pictures: pictures.map(([, name, type, data]) => ({ name, type, data })) }];
}
