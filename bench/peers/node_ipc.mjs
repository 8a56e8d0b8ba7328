// Node's child-process IPC: `node node_ipc.mjs flood|echo COUNT` prints messages or round trips a second.
import { fork } from "node:child_process";

const [, file, mode, count] = process.argv;
const total = Number(count);
const text = "x".repeat(200);
const delta = { type: "stream_update", message_id: "out", element: { type: "text_delta", text } };

if (process.send) {
  if (mode === "flood") {
    process.once("message", () => {
      let sent = 0;
      const more = () => {
        while (sent < total) {
          sent += 1;
          if (!process.send(delta)) return void setImmediate(more);
        }
      };
      more();
    });
  } else {
    process.on("message", (message) => process.send({ type: "complete", message_id: message.id }));
  }
  process.on("disconnect", () => process.exit(0));
} else {
  const child = fork(file, [mode, count]);
  let started = 0n;
  let seen = 0;
  const done = () => {
    const seconds = Number(process.hrtime.bigint() - started) / 1e9;
    console.log(total / seconds);
    child.disconnect();
  };
  child.on("message", (message) => {
    seen += 1;
    if (mode === "flood") {
      if (message.element.text.length !== 200) throw new Error("wrong text");
      if (seen === total) done();
    } else if (seen === total) done();
    else child.send({ type: "message", id: "m" + seen, data: { text: "hi", role: "user" } });
  });
  child.on("spawn", () => {
    started = process.hrtime.bigint();
    child.send({ type: "message", id: "m0", data: { text: "hi", role: "user" } });
  });
}
