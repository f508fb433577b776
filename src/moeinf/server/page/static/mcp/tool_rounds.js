// What happens to the calls of an answer: each is made once the person has agreed, and its result goes to the model.

import { word } from "../chat/tool_calls.js";
import { call } from "./mcp_client.js";

const REFUSED = "The user did not allow this call.";

/**
 * Answers each call of `node` in turn. tools: those that were offered. always: of the conversation, `server tool` of
 * those that need no word; it may grow. onChange(): a call stands otherwise than before. Raises an AbortError where
 * `signal` gives up.
 */
export async function answerCalls(node, { tools, always, onChange, signal }) {
  const set = (made, state, result) => {
    Object.assign(made, { state, ...(result !== undefined && { result }) });
    onChange();
  };
  for (const made of node.calls) {
    const tool = tools.find(({ name }) => name === made.name);
    if (!tool) {
      set(made, "failed", `There is no tool ${made.name}.`);
      continue;
    }
    made.server = tool.server;
    const key = `${tool.server} ${tool.tool}`;
    if (!always.includes(key)) {
      const answer = word(made, signal);
      set(made, "asked");
      const said = await answer;
      if (said === "refuse") {
        set(made, "refused", REFUSED);
        continue;
      }
      if (said === "always") always.push(key);
    }
    set(made, "running");
    try {
      const { text, pictures } = await call(tool, made.arguments, signal);
      if (pictures.length) made.pictures = pictures;
      set(made, "done", text);
    } catch (error) {
      set(made, "failed", error.message);
    }
    signal.throwIfAborted();
  }
}
