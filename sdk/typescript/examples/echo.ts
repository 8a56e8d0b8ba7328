// Counts what it is told and says it back; the count survives restarts.
import { Agent } from "@quintet/agent";

const agent = new Agent({ initialState: { count: 0, history: [] as string[] } });

agent.onMessage(async (ctx, message) => {
  agent.state.count += 1;
  agent.state.history.push(message.text);
  // For guidance: `quintet steer SESSION TEXT`.
  if (message.text === "wait") {
    await ctx.text("waiting");
    const guidance = await ctx.steered.next();
    if (!guidance.done) await ctx.text(`, told: ${guidance.value}`);
  }
  await ctx.tool("count", { words: message.text }, () => String(message.text.split(/\s+/).length));
  const prefix = String(agent.config["prefix"] ?? "");
  await ctx.text(`${prefix}${agent.state.count}: ${message.text}`);
  await ctx.usage(message.text.length, 0, "0.001");
});

agent.onConfig((changes, source) => agent.log.info(`${source} changed: ${Object.keys(changes).join(", ")}`));
agent.onShutdown((reason) => agent.log.info(`stopping: ${reason}`));

await agent.run();
