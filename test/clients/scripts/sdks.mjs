// The SDKs of OpenAI and Anthropic for Node: lists, chats, streams, tools, responses, messages, and errors as their own classes.
import assert from "node:assert";
import { createRequire } from "node:module";

const require = createRequire(process.env.KVASIR_NODE + "/package.json");
const OpenAI = require("openai");
const Anthropic = require("@anthropic-ai/sdk");
const { KVASIR_URL: url, KVASIR_MODEL: model, KVASIR_REAL: real } = process.env;

const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Say something." }];

const models = [];
for await (const m of client.models.list()) models.push(m.id);
assert(models.includes(model), "the model is not listed");

const chat = await client.chat.completions.create({ model, messages, max_tokens: 8 });
assert(chat.choices[0].message.content);

let text = "";
for await (const c of await client.chat.completions.create({ model, messages, max_tokens: 8, stream: true })) text += c.choices[0].delta.content ?? "";
assert(text);

const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } }];
// vLLM refuses "auto" unless it was started with a tool parser.
const answer = await client.chat.completions.create({ model, messages, tools, tool_choice: real ? "none" : "auto", max_tokens: 8 });
assert(answer.choices[0].message.role === "assistant");

const response = await client.responses.create({ model, input: "Say something.", max_output_tokens: 16 });
assert(response.output_text);
const kinds = [];
for await (const e of await client.responses.create({ model, input: "Say something.", max_output_tokens: 16, stream: true })) kinds.push(e.type);
assert(kinds[0] === "response.created", kinds.join());

const fails = async (kind, status, code, make) => {
  try {
    await make();
  } catch (e) {
    assert(e instanceof kind && e.status === status && (!code || e.code === code), `${e.constructor.name} ${e.status} ${e.code}`);
    return;
  }
  assert.fail("no " + kind.name);
};
await fails(OpenAI.NotFoundError, 404, "model_not_found", () => client.chat.completions.create({ model: "no-such-model", messages }));
await fails(OpenAI.BadRequestError, 400, null, () => client.chat.completions.create({ model, messages, max_tokens: -1 }));
await fails(OpenAI.InternalServerError, 503, null, () => client.chat.completions.create({ model: "nobody-serves-this", messages }));
await fails(OpenAI.InternalServerError, 503, null, () => client.chat.completions.create({ model: "nobody-serves-this", messages }, { maxRetries: 1 }));

const other = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
await fails(Anthropic.NotFoundError, 404, null, () => other.messages.create({ model: "no-such-model", messages, max_tokens: 8 }));
await fails(Anthropic.InternalServerError, 503, null, () => other.messages.create({ model: "nobody-serves-this", messages, max_tokens: 8 }));
const message = await other.messages.create({ model, messages, max_tokens: 8 });
assert(message.content[0].text && message.usage.output_tokens > 0);
let said = "";
for await (const e of await other.messages.create({ model, messages, max_tokens: 8, stream: true })) said += e.delta?.text ?? "";
assert(said);
console.log("ok");
