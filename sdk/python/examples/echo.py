"""Counts what it is told and says it back; the count survives restarts."""

from typing import Any, Mapping, Optional

from quintet_agent import Agent, Context, Message

agent = Agent(initial_state={"count": 0, "history": []})


@agent.on_message
async def handle(ctx: Context, message: Message) -> None:
    agent.state["count"] += 1
    agent.state["history"].append(message.text)
    if message.text == "wait":  # For guidance: `quintet steer SESSION TEXT`.
        await ctx.text("waiting")
        async for guidance in ctx.steered:
            await ctx.text(f", told: {guidance}")
            break
    async with ctx.tool("count", {"words": message.text}) as call:
        call.output = str(len(message.text.split()))
    prefix = agent.config.get("prefix", "")
    await ctx.text(f"{prefix}{agent.state['count']}: {message.text}")
    await ctx.usage(input_tokens=len(message.text), output_tokens=0, cost="0.001")


@agent.on_config
def configured(changes: Mapping[str, Any], source: Optional[str]) -> None:
    agent.log.info("%s changed: %s", source, ", ".join(changes))


@agent.on_shutdown
def bye(reason: str) -> None:
    agent.log.info("stopping: %s", reason)


agent.run()
