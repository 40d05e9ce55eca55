// @azure/service-bus, told by JSON lines on standard input what to do; answers on standard output.
//
// A request has an `id` and one of:
//   {new: class, args}            makes an object of the SDK and answers with its handle
//   {on: handle, call, args}      calls a method and answers with what it returns, or resolves to
//   {on: handle, collect, args}   calls a method that returns an asynchronous iterator, and answers with all it gives
//   {on: handle, get}             reads a property
//   {on: handle, stream: count}   subscribes, completes so many messages, and answers with them
//   {on: handle, fill: messages}  fills a batch with as many messages as it takes, sends it, answers how many these were
//   {free: [handles]}             forgets objects
//
// Values that JSON has no word for are objects with the one key `$`, their kind, beside `v`: see encode and decode.

"use strict";

const path = require("path");
const readline = require("readline");

const MODULES = path.join(__dirname, "..", "peers", "node_modules");
const sdk = require(path.join(MODULES, "@azure", "service-bus"));
const Long = require(path.join(MODULES, "long"));
const WebSocket = require(path.join(MODULES, "ws"));

const CLASSES = {
  ServiceBusClient: (connectionString, options, websocket) =>
    new sdk.ServiceBusClient(connectionString, websocket ? { ...options, webSocketOptions: { webSocket: WebSocket } } : options),
  ServiceBusAdministrationClient: (connectionString, options) =>
    new sdk.ServiceBusAdministrationClient(connectionString, options),
};

const MESSAGE = [
  "body", "messageId", "correlationId", "sessionId", "replyToSessionId", "partitionKey", "contentType", "subject", "to",
  "replyTo", "timeToLive", "scheduledEnqueueTimeUtc", "applicationProperties", "deliveryCount", "enqueuedTimeUtc",
  "expiresAtUtc", "lockedUntilUtc", "lockToken", "sequenceNumber", "enqueuedSequenceNumber", "deadLetterReason",
  "deadLetterErrorDescription", "deadLetterSource", "state",
];

const objects = new Map();
let last = 0;

function keep(thing, fields) {
  objects.set(++last, thing);
  return { $: "handle", v: last, fields };
}

function pick(thing, names) {
  return Object.fromEntries(names.map((name) => [name, encode(thing[name])]));
}

function encode(value) {
  if (value === undefined || value === null) return null;
  if (typeof value !== "object") return value;
  if (value instanceof Date) return { $: "date", v: value.getTime() };
  if (Long.isLong(value)) return { $: "long", v: value.toString() };
  if (value instanceof Uint8Array) return { $: "bytes", v: Buffer.from(value).toString("base64") };
  if (Array.isArray(value)) return value.map(encode);
  if (value._rawAmqpMessage !== undefined) {
    const raw = pick(value._rawAmqpMessage, [
      "bodyType", "header", "properties", "messageAnnotations", "deliveryAnnotations", "footer",
    ]);
    return keep(value, { ...pick(value, MESSAGE), raw });
  }
  if (isLive(value)) return keep(value, null);
  return Object.fromEntries(
    Object.entries(value).filter(([name]) => name !== "_response").map(([name, inner]) => [name, encode(inner)])
  );
}

function isLive(value) {
  return ["close", "createRule"].some((method) => typeof value[method] === "function");
}

function decode(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(decode);
  switch (value.$) {
    case undefined:
      return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, decode(inner)]));
    case "undefined":
      return undefined;
    case "date":
      return new Date(value.v);
    case "long":
      return Long.fromString(value.v);
    case "bytes":
      return Buffer.from(value.v, "base64");
    case "handle":
      return objects.get(value.v);
    default:
      throw new Error(`unknown kind ${value.$}`);
  }
}

function stream(receiver, count) {
  return new Promise((resolve, reject) => {
    const received = [];
    const subscription = receiver.subscribe(
      {
        processMessage: async (message) => {
          if (received.length === count) return;
          await receiver.completeMessage(message);
          received.push(message);
          if (received.length === count) subscription.close().then(() => resolve(received), reject);
        },
        processError: async (args) => reject(args.error),
      },
      { autoCompleteMessages: false, maxConcurrentCalls: 1 }
    );
  });
}

async function fill(sender, messages) {
  const batch = await sender.createMessageBatch();
  for (const message of messages) if (!batch.tryAddMessage(message)) break;
  await sender.sendMessages(batch);
  return batch.count;
}

async function collect(iterator) {
  const all = [];
  for await (const item of iterator) all.push(item);
  return all;
}

async function perform(request) {
  const args = decode(request.args ?? []);
  const thing = objects.get(request.on);
  if (request.new) return CLASSES[request.new](...args);
  if (request.call) return thing[request.call](...args);
  if (request.collect) return collect(thing[request.collect](...args));
  if (request.get) return thing[request.get];
  if (request.stream) return stream(thing, request.stream);
  if (request.fill) return fill(thing, decode(request.fill));
  if (request.free) for (const handle of request.free) objects.delete(handle);
  return undefined;
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + "\n");
}

async function answer(request) {
  try {
    say({ id: request.id, result: encode(await perform(request)) });
  } catch (error) {
    const { name, code, message, statusCode } = error;
    say({ id: request.id, error: { name, code: code === undefined ? null : String(code), message, statusCode } });
  }
}

readline.createInterface({ input: process.stdin }).on("line", (line) => answer(JSON.parse(line)));
process.stdin.on("end", () => process.exit(0));
