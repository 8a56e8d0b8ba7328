"""An agent against a coordinator on a real Unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import pytest

from quintet_agent import (
    MAX_FRAME,
    Agent,
    AgentError,
    Answered,
    Approval,
    ConnectionLost,
    Context,
    FinishReason,
    FrameError,
    Message,
    Option,
    Origin,
    ProtocolError,
    Question,
    Withdrawn,
)
from quintet_agent._frames import encode_frame

from coordinator import INIT, Coordinator, deltas, elements, frame, message, serving, texts
from rfc6902 import apply

ROOT = Path(__file__).parent.parent


def echo() -> Agent:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        await ctx.text(message.text)

    return agent


def test_a_frame_is_a_little_endian_length_and_compact_json() -> None:
    update = {
        "type": "stream_update",
        "message_id": "msg_out_456",
        "element": {"type": "text_delta", "text": "Here is the fix é\n"},
    }
    payload = (
        '{"type":"stream_update","message_id":"msg_out_456",'
        '"element":{"type":"text_delta","text":"Here is the fix é\\n"}}'
    ).encode()
    assert encode_frame(update) == b"\x71\x00\x00\x00" + payload


def test_every_element_has_the_fields_of_the_protocol() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        await ctx.thinking("hm")
        await ctx.text("a")
        async with ctx.tool("grep", {"pattern": "x"}) as call:
            call.output = "1 match"
        with pytest.raises(ValueError):
            async with ctx.tool("fail"):
                raise ValueError("no such file")
        await ctx.code("rust", "fn main() {}")
        await ctx.file_change("src/a.rs", "modified", diff="-a\n+b\n")
        await ctx.file_change("b", "deleted")
        await ctx.terminal("out\n")
        await ctx.terminal("err\n", stream="stderr")
        await ctx.element("plan", entries=[])
        await ctx.final("a")
        await ctx.usage(1000, 3000, Decimal("0.1"))
        await ctx.usage(250, 400, "0.2")

    async def main() -> List[Dict[str, Any]]:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            return await coordinator.turn()

    frames = asyncio.run(main())
    got = elements(frames)
    durations = [each.pop("duration_ms") for each in got if each["type"] == "tool_result"]
    assert all(isinstance(each, int) and each >= 0 for each in durations) and len(durations) == 2
    first, second = (each["call_id"] for each in got if each["type"] == "tool_call")
    assert first != second
    assert got == [
        {"type": "thinking", "text": "hm"},
        {"type": "text_delta", "text": "a"},
        {"type": "tool_call", "call_id": first, "name": "grep", "arguments": {"pattern": "x"}},
        {"type": "tool_result", "call_id": first, "output": "1 match", "is_error": False},
        {"type": "tool_call", "call_id": second, "name": "fail", "arguments": {}},
        {"type": "tool_result", "call_id": second, "output": "no such file", "is_error": True},
        {"type": "code_block", "language": "rust", "code": "fn main() {}"},
        {"type": "file_change", "path": "src/a.rs", "change": "modified", "diff": "-a\n+b\n"},
        {"type": "file_change", "path": "b", "change": "deleted"},
        {"type": "terminal_output", "stream": "stdout", "data": "out\n"},
        {"type": "terminal_output", "stream": "stderr", "data": "err\n"},
        {"type": "plan", "entries": []},
        {"type": "text_final", "text": "a"},
    ]
    used = [each["token_usage"] for each in frames if each["type"] == "usage"]
    assert used == [
        {"input_tokens": 1000, "output_tokens": 3000, "cost": "0.1"},
        {"input_tokens": 1250, "output_tokens": 3400, "cost": "0.3"},
    ]
    minted = {each["message_id"] for each in frames if each["type"] != "usage"}
    assert len(minted) == 1 and minted != {"msg_123"}
    assert frames[-1] == {
        "type": "complete",
        "message_id": minted.pop(),
        "finish_reason": "end_turn",
        "token_usage": {"input_tokens": 1250, "output_tokens": 3400, "cost": "0.3"},
    }


def test_a_message_and_the_configuration_arrive_whole() -> None:
    agent = Agent()
    seen: List[Any] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        seen.append((message, agent.id, agent.type, agent.workspace, dict(agent.config)))

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message("Fix the failing test"))
            await coordinator.turn()

    asyncio.run(main())
    [(got, *who)] = seen
    assert (got.id, got.text, got.role, list(got.attachments)) == ("msg_123", "Fix the failing test", "user", [])
    assert got.origin == Origin("tenant_abc", "admin", "web")
    assert who == ["agent_abc123", "claude-agent", INIT["workspace"], INIT["config"]]


def test_state_changes_between_two_awaits_are_one_patch_before_what_follows() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        agent.state["count"] = agent.state.get("count", 0) + 1
        agent.state.setdefault("history", []).append(message.text)
        await ctx.text("after")
        agent.state["count"] += 1
        await asyncio.sleep(0)
        agent.state["last"] = True

    async def main() -> List[Dict[str, Any]]:
        async with serving(agent, {**INIT, "state": {"count": 4}}) as coordinator:
            coordinator.send(message())
            return await coordinator.turn()

    frames = asyncio.run(main())
    assert [each["type"] for each in frames] == ["state_delta", "stream_update", "state_delta", "state_delta", "complete"]
    assert [len(each) for each in deltas(frames)] == [3, 1, 1]
    mirror: Any = {"count": 4}
    for patch in deltas(frames):
        mirror = apply(mirror, patch)
    assert mirror == {"count": 6, "history": ["hello"], "last": True}


def test_state_can_be_replaced_as_a_whole_and_saved_at_once() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        agent.state["gone"] = 1
        agent.state = {"only": [1]}
        await ctx.save()
        await asyncio.Event().wait()

    async def main() -> Optional[Dict[str, Any]]:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            return await coordinator.next()

    assert asyncio.run(main()) == {
        "type": "state_delta",
        "deltas": [{"op": "replace", "path": "", "value": {"only": [1]}}],
    }


def test_cancel_ends_the_handler_and_completes_the_turn_as_cancelled() -> None:
    agent = Agent()
    cleaned: List[str] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        if message.text == "stubborn":
            try:
                await ctx.text("on it")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cleaned.append("swallowed")
            return
        try:
            async with ctx.tool("sleep"):
                await asyncio.Event().wait()
        finally:
            cleaned.append(message.id)

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message(id="m1"))
            await coordinator.next()
            coordinator.send({"type": "cancel", "message_id": "another"}, {"type": "cancel", "message_id": "m1"})
            result, complete = await coordinator.turn()
            assert (result["element"]["is_error"], result["element"]["output"]) == (True, "cancelled")
            assert complete["finish_reason"] == "cancelled"

            coordinator.send(message("stubborn", id="m2"))
            await coordinator.next()
            coordinator.send({"type": "cancel", "message_id": "m2"})
            assert (await coordinator.turn())[-1]["finish_reason"] == "cancelled"

    asyncio.run(main())
    assert cleaned == ["m1", "swallowed"]


def test_a_handler_that_only_streams_still_sees_its_cancel() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        while True:
            await ctx.text("x")

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message(id="m1"))
            await coordinator.next()
            coordinator.send({"type": "cancel", "message_id": "m1"})
            assert (await coordinator.turn())[-1]["finish_reason"] == "cancelled"

    asyncio.run(main())


def test_a_coordinator_that_does_not_read_holds_the_handler_back() -> None:
    agent = Agent()
    sent: List[int] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        for n in range(200_000):
            await ctx.text("x" * 1000)
            sent.append(n)

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.writer.transport.pause_reading()  # type: ignore[attr-defined,unused-ignore]
            coordinator.send(message(id="m1"))
            # The handler is held back once its progress stops between two looks.
            seen = -1
            while seen != len(sent) or not sent:
                seen = len(sent)
                for _ in range(2000):
                    await asyncio.sleep(0)
            assert len(sent) < 5_000
            coordinator.writer.transport.resume_reading()  # type: ignore[attr-defined,unused-ignore]
            coordinator.send({"type": "cancel", "message_id": "m1"})
            assert (await coordinator.turn())[-1]["finish_reason"] == "cancelled"

    asyncio.run(main())


def test_steers_reach_the_running_turn_and_a_late_one_the_next() -> None:
    agent = Agent()
    told: List[str] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        await ctx.text("ready")
        async for guidance in ctx.steered:
            await ctx.text(guidance)
            if guidance == "enough":
                break

    @agent.on_steer
    def steered(content: str) -> None:
        told.append(content)

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            await coordinator.next()
            coordinator.send({"type": "steer", "content": "left"}, {"type": "steer", "content": "enough"})
            assert texts(await coordinator.turn()) == "leftenough"
            coordinator.send({"type": "steer", "content": "enough"}, message(id="m2"))
            assert texts(await coordinator.turn()) == "readyenough"

    asyncio.run(main())
    assert told == ["left", "enough", "enough"]


def test_guidance_that_no_turn_looks_at_is_given_back() -> None:
    agent = Agent()

    async def main() -> None:
        release = asyncio.Event()

        @agent.on_message
        async def handle(ctx: Context, message: Message) -> None:
            await ctx.text("ready")
            await release.wait()
            release.clear()

        @agent.on_config
        def configured(changes: Mapping[str, Any], source: Optional[str]) -> None:
            release.set()

        async with serving(agent) as coordinator:
            unread = {"type": "steer_unread", "content": "left"}
            coordinator.send(message())
            await coordinator.next()
            coordinator.send({"type": "steer", "content": "left"}, {"type": "config_update", "changes": {"k": 1}})
            frames = await coordinator.turn()
            assert frames[0] == unread and frames[-1]["finish_reason"] == "end_turn"
            coordinator.send({"type": "steer", "content": "left"})
            assert await coordinator.next() == unread
            # Who cancels does not want it.
            coordinator.send(message(id="m2"))
            await coordinator.next()
            coordinator.send({"type": "steer", "content": "left"}, {"type": "cancel", "message_id": "m2"})
            assert [frame["type"] for frame in await coordinator.turn()] == ["complete"]

    asyncio.run(main())


def test_questions_and_approvals_wait_for_their_own_answer() -> None:
    agent = Agent()
    got: List[Any] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        question = Question("Which?", "Pick", [Option("a", "the first")], multi_select=True)
        approval, ask, withdrawn = await asyncio.gather(
            ctx.approve("exec", command="rm -rf x", cwd="/w", reason="cleanup"),
            ctx.ask_user([question]),
            ctx.ask_user(["Free text?"]),
        )
        got.extend([approval, ask, withdrawn])

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            approve, ask, free = [await coordinator.next() for _ in range(3)]
            assert approve and ask and free
            assert approve == {
                "type": "approval_request",
                "request_id": approve["request_id"],
                "action": "exec",
                "command": "rm -rf x",
                "cwd": "/w",
                "reason": "cleanup",
            }
            assert ask == {
                "type": "ask_user",
                "ask_id": ask["ask_id"],
                "questions": [
                    {
                        "question": "Which?",
                        "header": "Pick",
                        "options": [{"label": "a", "description": "the first"}],
                        "multi_select": True,
                    }
                ],
            }
            assert free["questions"] == [{"question": "Free text?", "header": "", "options": [], "multi_select": False}]
            coordinator.send(
                {"type": "ask_result", "ask_id": "nobody's", "outcome": {"status": "withdrawn", "reason": ""}},
                {"type": "ask_result", "ask_id": free["ask_id"], "outcome": {"status": "withdrawn", "reason": "busy"}},
                {"type": "ask_result", "ask_id": ask["ask_id"], "outcome": {"status": "answered", "answers": [["a", "b"]]}},
                {"type": "approval_result", "request_id": approve["request_id"], "approved": False, "reason": "no", "by": "ann", "scope": "once"},
            )
            await coordinator.turn()

    asyncio.run(main())
    assert got == [Approval(False, "no", "ann", "once"), Answered([["a", "b"]]), Withdrawn("busy")]
    assert not got[0]


def test_config_updates_merge_and_are_told_in_order() -> None:
    agent = Agent()
    told: List[Any] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        await ctx.text(json.dumps(dict(agent.config)))

    @agent.on_config
    async def changed(changes: Any, source: Optional[str]) -> None:
        await asyncio.sleep(0)
        told.append((changes, source))

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(
                {"type": "config_update", "changes": {"model": "m2"}, "source": "user"},
                {"type": "config_update", "changes": {"temperature": 0.3}, "source": "file"},
                message(),
            )
            assert json.loads(texts(await coordinator.turn())) == {"model": "m2", "temperature": 0.3}
            await coordinator.shutdown()

    asyncio.run(main())
    assert told == [({"model": "m2"}, "user"), ({"temperature": 0.3}, "file")]


@pytest.mark.parametrize("split", [1, 3, 7])
def test_frames_may_arrive_in_any_pieces(split: int) -> None:
    async def main() -> None:
        async with serving(echo(), init=None) as coordinator:
            stream = frame(INIT) + frame(message("one", "m1")) + frame(message("zwei ü", "m2"))
            for at in range(0, len(stream), split):
                coordinator.writer.write(stream[at : at + split])
                await asyncio.sleep(0)
            assert texts(await coordinator.turn()) == "one"
            assert texts(await coordinator.turn()) == "zwei ü"

    asyncio.run(main())


def test_messages_that_come_together_run_one_after_the_other() -> None:
    agent = Agent()
    running: List[str] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        running.append(message.id)
        assert len(running) == 1
        await asyncio.sleep(0)
        await ctx.text(message.id)
        running.pop()

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(*(message(id=f"m{n}") for n in range(20)))
            assert [texts(await coordinator.turn()) for _ in range(20)] == [f"m{n}" for n in range(20)]

    asyncio.run(main())


def test_unknown_types_and_fields_are_ignored_and_logged_once() -> None:
    async def main() -> List[Dict[str, Any]]:
        async with serving(echo()) as coordinator:
            coordinator.send({"type": "hologram", "x": 1}, {"type": "hologram"}, {**message(), "extra": [1]})
            return await coordinator.turn()

    frames = asyncio.run(main())
    logs = [each for each in frames if each["type"] == "log"]
    assert [(each["level"], each["message"], each["module"]) for each in logs] == [
        ("warn", "ignored a message of unknown type 'hologram'", "agent")
    ]
    assert texts(frames) == "hello"


@pytest.mark.parametrize(
    "bad, error",
    [
        (struct.pack("<I", MAX_FRAME + 1), FrameError),
        (b"\xff\xff\xff\xff garbage", FrameError),
        (b"\x02\x00\x00\x00[]", FrameError),
        (b"\x03\x00\x00\x00{\"a", FrameError),
        (b"\x01\x00\x00\x00\xff", FrameError),
        (frame({"no": "type"}), ProtocolError),
        (frame({"type": "message", "id": 7, "data": {"text": "x"}}), ProtocolError),
        (frame({"type": "message", "id": "m", "data": {}}), ProtocolError),
        (frame({"type": "steer"}), ProtocolError),
        (frame({"type": "ask_result", "ask_id": "a", "outcome": {"status": "eaten"}}), ProtocolError),
        (frame(INIT), ProtocolError),
    ],
)
def test_what_is_not_the_protocol_ends_the_agent(bad: bytes, error: Any) -> None:
    async def main() -> None:
        async with serving(echo()) as coordinator:
            coordinator.writer.write(bad)
            coordinator.writer.write_eof()
            assert await coordinator.next() is None
            with pytest.raises(error):
                await coordinator.agent_task

    asyncio.run(main())


@pytest.mark.parametrize("first", [message(), {**INIT, "state": [1]}, {**INIT, "agent_id": None}])
def test_the_first_message_is_a_good_init(first: Any) -> None:
    async def main() -> None:
        async with serving(echo(), init=first) as coordinator:
            with pytest.raises(ProtocolError):
                await coordinator.agent_task

    asyncio.run(main())


@pytest.mark.parametrize("cut", [2, 10])
def test_a_connection_that_ends_inside_a_frame_is_an_error(cut: int) -> None:
    async def main() -> None:
        async with serving(echo()) as coordinator:
            coordinator.writer.write(frame(message())[:cut])
            coordinator.writer.write_eof()
            with pytest.raises(FrameError):
                await coordinator.agent_task

    asyncio.run(main())


def test_a_lost_coordinator_cancels_the_turn_and_is_an_error() -> None:
    agent = Agent()
    cleaned: List[bool] = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        try:
            await ctx.text("on it")
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            await coordinator.next()
            coordinator.writer.close()
            with pytest.raises(ConnectionLost):
                await coordinator.agent_task

    asyncio.run(main())
    assert cleaned == [True]


def test_an_element_over_the_limit_is_an_error_of_the_handler_alone() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        if message.id == "big":
            with pytest.raises(FrameError):
                await ctx.text("x" * (MAX_FRAME + 1))
        await ctx.text("y" * (MAX_FRAME - 200))

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message(id="big"))
            assert len(texts(await coordinator.turn())) == MAX_FRAME - 200

    asyncio.run(main())


def test_a_patch_over_the_limit_ends_the_agent() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        agent.state["big"] = "x" * (MAX_FRAME + 1)
        await ctx.text("never")

    async def main() -> None:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            log = await coordinator.next()
            assert log and log["type"] == "log" and "over the limit" in log["message"]
            assert await coordinator.next() is None
            with pytest.raises(FrameError):
                await coordinator.agent_task

    asyncio.run(main())


def test_shutdown_lets_the_turn_finish_and_sends_the_last_changes() -> None:
    agent = Agent()
    go = []

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        released = asyncio.Event()
        go.append(released)
        await ctx.text("started")
        await released.wait()
        await ctx.text("finished")

    @agent.on_shutdown
    async def bye(reason: str) -> None:
        agent.state["stopped"] = reason
        agent.log.info("bye")
        go[0].set()

    async def main() -> List[Dict[str, Any]]:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            await coordinator.next()
            return await coordinator.shutdown("reload")

    frames = asyncio.run(main())
    assert texts(frames) == "finished"
    assert [each["finish_reason"] for each in frames if each["type"] == "complete"] == ["end_turn"]
    assert deltas(frames) == [
        [{"op": "replace", "path": "", "value": {}}, {"op": "add", "path": "/stopped", "value": "reload"}]
    ]
    assert [each["message"] for each in frames if each["type"] == "log"] == ["bye"]


def test_shutdown_cancels_a_turn_that_does_not_finish() -> None:
    agent = Agent(shutdown_grace=0.05)

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        await ctx.text("started")
        await asyncio.Event().wait()

    async def main() -> List[Dict[str, Any]]:
        async with serving(agent) as coordinator:
            coordinator.send(message(), message(id="never run"))
            await coordinator.next()
            return await coordinator.shutdown()

    [complete] = asyncio.run(main())
    assert complete["finish_reason"] == "cancelled"


def test_a_handler_may_fail_or_choose_its_finish_reason() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> Optional[FinishReason]:
        if message.text == "fail":
            raise ValueError("bad luck")
        return message.text  # type: ignore[return-value]

    async def main() -> None:
        async with serving(agent) as coordinator:
            for text, reason in [("max_tokens", "max_tokens"), ("fail", "error"), ("nonsense", "error"), ("budget", "budget")]:
                coordinator.send(message(text))
                frames = await coordinator.turn()
                assert frames[-1]["finish_reason"] == reason
                assert any("bad luck" in each.get("message", "") for each in frames) == (text == "fail")
                if text == "fail":
                    assert texts(frames) == "bad luck"

    asyncio.run(main())


def test_logs_carry_level_module_and_time_and_early_ones_are_kept() -> None:
    agent = echo()
    agent.log.debug("before %s", "init")

    @agent.on_start
    def started() -> None:
        agent.log.getChild("analyzer").warning("careful")

    async def main() -> List[Optional[Dict[str, Any]]]:
        async with serving(agent) as coordinator:
            return [await coordinator.next(), await coordinator.next()]

    early, late = asyncio.run(main())
    assert early and late
    assert (early["level"], early["message"], early["module"]) == ("debug", "before init", "agent")
    assert (late["level"], late["message"], late["module"]) == ("warn", "careful", "agent.analyzer")
    assert late["timestamp"].endswith("Z") and len(late["timestamp"]) == len("2025-01-15T10:30:00.000Z")


def test_a_log_from_another_thread_arrives() -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        await asyncio.get_running_loop().run_in_executor(None, agent.log.info, "from a thread")

    async def main() -> List[Dict[str, Any]]:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            return await coordinator.until(lambda each: each["type"] == "log")

    assert asyncio.run(main())[-1]["message"] == "from a thread"


@pytest.mark.parametrize("cost, error", [(0.5, TypeError), ("a lot", ValueError), ("-1", ValueError), ("NaN", ValueError)])
def test_a_cost_is_a_decimal(cost: Any, error: Any) -> None:
    agent = Agent()

    @agent.on_message
    async def handle(ctx: Context, message: Message) -> None:
        with pytest.raises(error):
            await ctx.usage(1, 1, cost)
        await ctx.usage(1, 1, Decimal("1E-7"))

    async def main() -> List[Dict[str, Any]]:
        async with serving(agent) as coordinator:
            coordinator.send(message())
            return await coordinator.turn()

    assert asyncio.run(main())[-1]["token_usage"] == {
        "input_tokens": 1,
        "output_tokens": 1,
        "cost": "0.0000001",
    }


def test_an_agent_without_a_coordinator_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUINTET_IPC_SOCKET", raising=False)
    with pytest.raises(AgentError, match="QUINTET_IPC_SOCKET is not set"):
        echo().run()
    with pytest.raises(AgentError, match="@agent.on_message"):
        Agent().run()
    monkeypatch.setenv("QUINTET_IPC_SOCKET", "/nowhere/ipc.sock")
    with pytest.raises(ConnectionLost, match="/nowhere/ipc.sock"):
        echo().run()


def test_the_example_runs_as_a_process_and_ends_on_sigterm() -> None:
    async def main() -> None:
        connected: "asyncio.Future[Coordinator]" = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set_result(Coordinator(reader, writer))

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "ipc.sock")
            server = await asyncio.start_unix_server(accept, path)
            environment = {**os.environ, "QUINTET_IPC_SOCKET": path, "PYTHONPATH": str(ROOT / "src")}
            process = subprocess.Popen([sys.executable, str(ROOT / "examples/echo.py")], env=environment)
            try:
                coordinator = await asyncio.wait_for(connected, 20)
                coordinator.send({**INIT, "state": {"count": 6, "history": []}}, message("hello world"))
                frames = await coordinator.turn()
                assert texts(frames) == "7: hello world"
                process.terminate()
                farewell = await coordinator.next()
                assert farewell and farewell["message"] == "stopping: sigterm"
                assert await coordinator.next() is None
                assert await asyncio.get_running_loop().run_in_executor(None, process.wait, 20) == 0
            finally:
                process.kill()
                process.wait()
                server.close()

    asyncio.run(main())
